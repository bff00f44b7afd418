"""What the files of others' tools must at least have, as JSON schemas."""

from __future__ import annotations

from typing import Any, Final

import jsonschema  # type: ignore[import-untyped,unused-ignore]


def check(document: Any, schema: dict[str, Any]) -> None:
    """Fail unless the document has all that the schema asks for."""
    jsonschema.validate(document, schema)


_TEXT: Final = {"type": "string", "minLength": 1}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}


def _object(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": {**required, **more}}


def _exactly(value: Any) -> dict[str, Any]:
    return {"const": value}


COMPOSE: Final = _object(
    {
        "name": _TEXT,
        "services": {
            "type": "object",
            "additionalProperties": _object(
                {
                    "image": _TEXT,
                    "restart": _exactly("unless-stopped"),
                    "read_only": _exactly(True),
                    "cap_drop": _exactly(["ALL"]),
                    "security_opt": _exactly(["no-new-privileges:true"]),
                },
                volumes=_TEXTS,
                build=_object({"context": _TEXT, "dockerfile": _TEXT}),
                # To other machines nothing is open.
                ports={"type": "array", "items": {"pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
                environment={"type": "object", "additionalProperties": _TEXT},
            ),
        },
        "volumes": {"type": "object"},
        # Compose gives a container that is read_only nothing but files.
        "secrets": {
            "type": "object",
            "additionalProperties": {**_object({"file": _TEXT}), "additionalProperties": False},
        },
    }
)

_CLOSED_POD: Final = _object(
    {
        "runAsNonRoot": _exactly(True),
        "runAsUser": {"type": "integer", "minimum": 1},
        "seccompProfile": _exactly({"type": "RuntimeDefault"}),
    }
)
_CLOSED: Final = _object(
    {
        "allowPrivilegeEscalation": _exactly(False),
        "readOnlyRootFilesystem": _exactly(True),
        "capabilities": _exactly({"drop": ["ALL"]}),
    }
)
_IMAGE: Final = {"type": "string", "pattern": "^[a-z-]+$"}  # the tag is kustomize's to set
_PROBE: Final = _object({"httpGet": _object({"path": _TEXT, "port": _exactly("http")})})
_CONTAINER: Final = _object(
    {
        "name": _TEXT,
        "image": _IMAGE,
        "env": {
            "type": "array",
            "items": {
                **_object({"name": _TEXT}),
                "oneOf": [{"required": ["value"]}, {"required": ["valueFrom"]}],
            },
        },
        "ports": {"type": "array", "items": _object({"name": _TEXT, "containerPort": {"type": "integer"}})},
        "startupProbe": _PROBE,
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "resources": _object({"requests": _object({"cpu": _TEXT, "memory": _TEXT})}),
        "securityContext": _CLOSED,
        "volumeMounts": {"type": "array", "items": _object({"name": _TEXT, "mountPath": _TEXT})},
    }
)
STATEFUL_SET: Final = _object(
    {
        "apiVersion": _exactly("apps/v1"),
        "metadata": _object({"name": _TEXT}),
        "spec": _object(
            {
                "serviceName": _TEXT,
                "replicas": {"type": "integer", "minimum": 1},
                "selector": _object({"matchLabels": {"type": "object", "minProperties": 1}}),
                "template": _object(
                    {
                        "metadata": _object({"labels": {"type": "object"}}),
                        "spec": _object(
                            {
                                "automountServiceAccountToken": _exactly(False),
                                "enableServiceLinks": _exactly(False),
                                "terminationGracePeriodSeconds": {"type": "integer", "minimum": 11},
                                "securityContext": _CLOSED_POD,
                                "containers": {"type": "array", "items": _CONTAINER, "minItems": 1},
                                "volumes": {"type": "array", "items": _object({"name": _TEXT})},
                            }
                        ),
                    }
                ),
                "volumeClaimTemplates": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object(
                        {
                            "metadata": _object({"name": _TEXT}),
                            "spec": _object({"accessModes": _exactly(["ReadWriteOnce"])}),
                        }
                    ),
                },
            }
        ),
    }
)

_JOB_POD: Final = _object(
    {
        "restartPolicy": _exactly("Never"),
        "automountServiceAccountToken": _exactly(False),
        "enableServiceLinks": _exactly(False),
        "securityContext": _CLOSED_POD,
        "containers": {
            "type": "array",
            "items": _object({"image": _IMAGE, "command": _TEXTS, "securityContext": _CLOSED}),
        },
    }
)
CRON_JOB: Final = _object(
    {
        "apiVersion": _exactly("batch/v1"),
        "spec": _object(
            {
                "schedule": {"type": "string", "pattern": r"^\S+( \S+){4}$"},
                "concurrencyPolicy": _exactly("Forbid"),
                "jobTemplate": _object(
                    {
                        "spec": _object(
                            {
                                "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                                "template": _object({"spec": _JOB_POD}),
                            }
                        )
                    }
                ),
            }
        ),
    }
)

ALERTS: Final = _object(
    {
        "groups": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {
                    "name": _TEXT,
                    "rules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            **_object(
                                {
                                    "alert": {"type": "string", "pattern": "^Vox[A-Za-z]+$"},
                                    "expr": _TEXT,
                                    "labels": _object({"severity": {"enum": ["page", "ticket"]}}),
                                    "annotations": _object({"summary": _TEXT, "runbook": _TEXT}),
                                },
                                **{"for": {"type": "string", "pattern": r"^\d+[smh]$"}},
                            ),
                            "additionalProperties": False,
                        },
                    },
                }
            ),
        }
    }
)

_PLACE: Final = _object({side: {"type": "integer", "minimum": 0} for side in "xywh"})
DASHBOARD: Final = _object(
    {
        "uid": _TEXT,
        "title": _TEXT,
        "schemaVersion": {"type": "integer"},
        "panels": {
            "type": "array",
            "items": {
                **_object({"id": {"type": "integer"}, "title": _TEXT, "gridPos": _PLACE}),
                "if": {"properties": {"type": _exactly("row")}},
                "else": _object(
                    {
                        "description": _TEXT,
                        "targets": {
                            "type": "array",
                            "minItems": 1,
                            "items": _object({"refId": _TEXT, "expr": _TEXT}),
                        },
                    }
                ),
            },
        },
    }
)
