"""Public names that moved keep working for one release, with a warning."""

from __future__ import annotations

import importlib

import pytest

import vox_mesh
from vox_mesh import Yield


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


def test_a_handler_may_still_raise_give_back() -> None:
    with pytest.warns(DeprecationWarning, match="vox_mesh.GiveBack is deprecated: use Yield"):
        from vox_mesh import GiveBack
    assert GiveBack is Yield
    assert str(GiveBack("busy", delay=2)) == "busy"
    assert GiveBack(delay=2).delay_ms == 2_000
