"""Public names that moved keep working for one release, with a warning."""

from __future__ import annotations

import importlib

import pytest

import vox_mesh


def test_the_fields_of_log_lines_are_found_where_they_were() -> None:
    old = importlib.import_module("vox_mesh.coordination.log_context")
    with pytest.warns(DeprecationWarning, match="import log_fields from vox_mesh"):
        assert old.log_fields is vox_mesh.log_fields


def test_what_never_was_there_is_not_found() -> None:
    old = importlib.import_module("vox_mesh.coordination.log_context")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = old.nothing


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in vox_mesh.__all__ if not hasattr(vox_mesh, name)] == []
