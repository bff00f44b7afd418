"""Manifests in bodies: validated like those in files, and described as they are written."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, GetJsonSchemaHandler, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from vox_mesh.jobs.jobs import MAX_AT_ONCE
from vox_mesh.model.jobs.manifest import Manifest, manifests_at
from vox_mesh.model.jobs.manifest_fields import MAX_AFTER
from vox_mesh.model.jobs.records import EXEC, MAX_TAGS, TAG
from vox_mesh.model.rhythm.budgets import BAR_DIGITS, WAITS
from vox_mesh.model.rhythm.costs import CLASSED, MOST, PLAIN
from vox_mesh.model.rhythm.policy import PHASES
from vox_mesh.model.rhythm.score import CHECKPOINT, DEFER, MAX_PHRASES, MAX_STEPS
from vox_mesh.model.rhythm.tempo import FASTEST_BPM, LONGEST_BAR, SLOWEST_BPM
from vox_mesh.model.rhythm.tokens import INPUT, MAX_TOKENS, OUTPUT, TOKENS


def _map(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _beats(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": LONGEST_BAR}


def _amount(least: float = 0, most: float = MOST) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


_AMOUNT: Final = _amount()


_BY_CLASS: Final = {
    "type": "object",
    "propertyNames": {"pattern": r"^[^\x00]+$"},
    "additionalProperties": _AMOUNT,
}
_STEPS: Final = {"type": "array", "uniqueItems": True, "maxItems": MAX_STEPS}
_THREE_BEATS: Final = {
    "required": ["bar_len"],
    "properties": {
        "bar_len": {"const": len(PHASES)},
        "phases": {"properties": {phase: {"const": 1} for phase in PHASES}},
    },
}
"""A schema can't state that phases sum to the bar: this is a combination that does."""

SCORE: Final = _map(
    {
        "tempo": {"type": "number", "minimum": SLOWEST_BPM, "maximum": FASTEST_BPM},
        "bar_len": _beats(len(PHASES)),
        "phases": _map(
            dict.fromkeys(PHASES, _beats(1)),
            required=[*PHASES],
            description="Beats per phase; the sum must be bar_len, 8 by default, or a multiple of it.",
        ),
        "start": {"enum": ["downbeat", "now"]},
        "wait_budget": _map({"help": _beats(0), "io": _beats(0)}),
        "retry": _map(
            {
                "max_phrases": {"type": "integer", "minimum": 1, "maximum": MAX_PHRASES},
                "backoff": {"enum": ["geometric", "none"]},
            }
        ),
        "escalation": _map(
            {
                "on_wait_exhausted": {
                    **_STEPS,
                    "items": {"type": "string", "pattern": "^emit:[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
                    "description": "One step may be fallback:NAME.",
                },
                "on_overrun": {**_STEPS, "items": {"enum": [CHECKPOINT, DEFER]}},
            }
        ),
    },
    anyOf=[{"properties": {"phases": False}}, _THREE_BEATS],
)
"""A score."""

_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}
_MONEY: Final = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})? USD$", "examples": ["20.00 USD"]}

BUDGET: Final = _map(
    {
        "max_bu": _AMOUNT,
        "phase_caps": _map(dict.fromkeys(PHASES, _AMOUNT)),
        "wait_caps": _map(dict.fromkeys(WAITS, _AMOUNT)),
        "hard_end": {
            "anyOf": [
                {"type": "string", "pattern": rf"^bar\+[0-9]{{1,{BAR_DIGITS}}}$"},
                {
                    "type": "string",
                    "pattern": r"^20[0-9]{2}-0[1-9]-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]Z$",
                },
            ]
        },
        "charge_to": {"type": "string", "pattern": "^[!-~]{1,200}$"},
        "per_beat": _map({**dict.fromkeys(PLAIN, _AMOUNT), **dict.fromkeys(CLASSED, _BY_CLASS)}),
        **{f"max_{name}": _COUNT for name in (TOKENS, INPUT, OUTPUT)},
        "max_money": _MONEY,
        "reserve": _map({**dict.fromkeys((TOKENS, INPUT, OUTPUT), _COUNT), "money": _MONEY}),
        "thresholds": _map(
            {"warn": _amount(0, 0.8), "claims": _amount(0.8, 1.25), "work": _amount(1.25)},
            description="Shares of the budget, with warn <= claims <= work.",
        ),
    }
)
"""A budget."""


_TEXT: Final = {"type": "string", "pattern": r"^[^\x00]*$"}
_JOB: Final = {"type": "string", "pattern": "^([0-9a-f]{6,64}|[0-7][0-9A-HJKMNP-TV-Z]{25})$"}
_ULID: Final = {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"}
_TIMEOUT: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 30 * 86_400},
        {"type": "string", "pattern": "^([0-9]{1,6}s|[0-9]{1,4}m|[0-9]{1,2}h([0-9]{1,2}m)?)$"},
    ]
}


def _duration(least: int) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "number", "minimum": least, "maximum": 86_400},
            {"type": "string", "pattern": "^([1-9][0-9]{0,3}s|[1-9][0-9]?m|[1-9]h([1-9][0-9]?m)?)$"},
        ]
    }


_WRITTEN: Final[dict[str, dict[str, Any]]] = {
    "command": {
        "type": "array",
        "prefixItems": [{**_TEXT, "minLength": 1}],
        "items": _TEXT,
        "minItems": 1,
    },
    "args": {"type": "array", "items": _TEXT},
    "timeout": _TIMEOUT,
    "env": {
        "type": "object",
        "propertyNames": {"type": "string", "pattern": r"^[^=\x00]+$"},
        "additionalProperties": _TEXT,
    },
    "env_from": {
        "type": "object",
        "propertyNames": {"type": "string", "pattern": r"^[^=\x00]+$"},
        "additionalProperties": _TEXT,
    },
    "cwd": {"type": "string", "pattern": r"^/[^\x00]*$"},
    "ulid": _ULID,
    "after": {
        "type": "array",
        "maxItems": MAX_AFTER,
        "items": {
            "anyOf": [
                _JOB,
                {
                    "type": "object",
                    "properties": {"job": _JOB, "when": {"enum": ["success", "end"]}},
                    "required": ["job"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"op": _ULID},
                    "required": ["op"],
                    "additionalProperties": False,
                },
            ]
        },
    },
    "run_at": {"type": "string", "format": "date-time"},
    "backoff": _duration(0),
    "lease": {"anyOf": [_duration(1), {"enum": ["phase", "bar"]}]},
    "score": SCORE,
    "budget": BUDGET,
    "tags": {
        "type": "array",
        "maxItems": MAX_TAGS,
        "uniqueItems": True,
        "items": {"type": "string", "pattern": f"^{TAG}$"},
    },
    "nonce": {**_TEXT, "minLength": 1, "maxLength": 128},
}
"""The schemas of fields that are stored in another form, or checked by code."""

_RULES: Final = (
    {
        "required": ["command", "timeout"],
        "properties": {"kind": {"const": EXEC}, "payload": False},
    },
    {
        "required": ["kind"],
        "properties": {
            "kind": {"not": {"const": EXEC}},
            **dict.fromkeys(("command", "args", "env", "env_from", "cwd"), False),
        },
    },
)
_NOT_WRITTEN: Final = ("retry_of",)


class _AsWritten:
    """Describes manifests as they are written: nothing is null, and converted fields are texts."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        manifest = handler.resolve_ref_schema(described)
        fields = manifest["properties"]
        for name in _NOT_WRITTEN:
            fields.pop(name, None)
        for name, field in fields.items():
            plain = [each for each in field.pop("anyOf", ()) if each != {"type": "null"}]
            field.pop("default", None)
            field.update(_WRITTEN.get(name) or (plain[0] if len(plain) == 1 else {}))
        manifest["anyOf"] = [*_RULES]
        return described


_Described = Annotated[Manifest, _AsWritten()]


def _read_all(value: Any, _: ValidatorFunctionWrapHandler) -> list[Manifest]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_AT_ONCE:
        raise ValueError(f"must be an array of 1 to {MAX_AT_ONCE} manifests")
    return manifests_at({("manifests", place): each for place, each in enumerate(value)})


def _read_one(value: Any, _: ValidatorFunctionWrapHandler) -> Manifest:
    (manifest,) = manifests_at({("manifest",): value})
    return manifest


GivenManifests = Annotated[
    list[_Described], Field(min_length=1, max_length=MAX_AT_ONCE), WrapValidator(_read_all)
]
"""Manifests, all of whose faults are reported together."""

GivenManifest = Annotated[_Described, WrapValidator(_read_one)]
"""One manifest."""
