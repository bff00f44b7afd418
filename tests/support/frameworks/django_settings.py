"""The settings of a Django project whose tasks are jobs. The environment chooses the mesh."""

from __future__ import annotations

from typing import Any

USE_TZ = True
SECRET_KEY = "not a secret"
INSTALLED_APPS: list[str] = []
TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "vox_mesh.integrations.django.MeshTaskBackend",
        "QUEUES": ["default", "mail"],
    },
    "stubborn": {
        "BACKEND": "vox_mesh.integrations.django.MeshTaskBackend",
        "OPTIONS": {"job": {"retries": 2, "backoff": 0.01}},
    },
    "elsewhere": {
        "BACKEND": "vox_mesh.integrations.django.MeshTaskBackend",
        "OPTIONS": {"mesh": {"enabled": False}},
    },
}
