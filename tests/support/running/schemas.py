"""Checks of documents against the JSON Schemas of the package."""

from __future__ import annotations

from typing import Any

import orjson
from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]

from vox_mesh.views.schemas import find_schema


def assert_fits(name: str, document: Any) -> None:
    """It is valid, and neither without a field that it needs, nor with an unknown one."""
    validator = Draft202012Validator(find_schema(name))
    plain = orjson.loads(orjson.dumps(document))
    validator.validate(plain)
    assert not is_valid(name, {**plain, "unknown": 1})
    for field in find_schema(name)["required"]:
        assert not is_valid(name, {key: value for key, value in plain.items() if key != field}), field


def is_valid(name: str, document: Any) -> bool:
    """Whether a document is as a schema says."""
    return bool(Draft202012Validator(find_schema(name)).is_valid(document))
