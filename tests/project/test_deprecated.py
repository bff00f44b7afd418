"""Public names that moved keep working for one release, with a warning."""

from __future__ import annotations

import importlib
from operator import attrgetter

import pytest

import vox_mesh
from vox_mesh import Yield, sync
from vox_mesh.messages.messages import Messages


def test_the_fields_of_log_lines_are_found_where_they_were() -> None:
    old = importlib.import_module("vox_mesh.coordination.log_context")
    with pytest.warns(DeprecationWarning, match=r"use vox_mesh\.log_fields") as seen:
        assert old.log_fields is vox_mesh.log_fields
    assert seen[0].filename == __file__


def test_what_never_was_there_is_not_found() -> None:
    old = importlib.import_module("vox_mesh.coordination.log_context")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = old.nothing


async def test_messages_are_found_under_their_old_name() -> None:
    async with vox_mesh.Mesh.open_command(vox_mesh.Settings()) as mesh:
        with pytest.warns(DeprecationWarning, match=r"use Mesh\.messages") as seen:
            assert mesh.bus is mesh.messages
        assert seen[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=r"use messages\.queries"):
            assert mesh.messages.letters is mesh.messages.queries


def test_messages_are_found_under_their_old_name_without_await() -> None:
    with sync.Mesh.open(vox_mesh.Settings()) as mesh:
        with pytest.warns(DeprecationWarning, match=r"use Mesh\.messages") as seen:
            old = mesh.bus
        assert old == mesh.messages
        assert seen[0].filename == __file__
        sent = old.send("b", 1, sender="a")
        with pytest.warns(DeprecationWarning, match=r"use messages\.wait_for_ack"):
            assert not old.acked(sent, 0.001)


def test_the_old_class_of_messages_is_the_new_one() -> None:
    old = importlib.import_module("vox_mesh.messages.bus")
    with pytest.warns(DeprecationWarning, match=r"use vox_mesh\.messages\.messages\.Messages"):
        assert old.Bus is Messages
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = old.nothing


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in vox_mesh.__all__ if not hasattr(vox_mesh, name)] == []


def test_a_handler_may_still_raise_give_back() -> None:
    with pytest.warns(DeprecationWarning, match="vox_mesh.GiveBack is deprecated: use Yield") as seen:
        from vox_mesh import GiveBack
    assert seen[0].filename == __file__
    assert GiveBack is Yield
    assert str(GiveBack("busy", delay=2)) == "busy"
    assert GiveBack(delay=2).delay_ms == 2_000


async def test_jobs_are_queried_and_yielded_under_the_old_names() -> None:
    async with vox_mesh.Mesh.open_command(vox_mesh.Settings()) as mesh:
        with pytest.warns(DeprecationWarning, match=r"jobs\.roster is deprecated: use jobs\.queries"):
            assert mesh.jobs.roster is mesh.jobs.queries
        with (
            pytest.warns(DeprecationWarning, match=r"use jobs\.yield_job"),
            pytest.raises(vox_mesh.MeshError),
        ):
            await mesh.jobs.give_back("0" * 64)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("store.home", "store.backend"),
        ("store.tenant", "store.writer_id"),
        ("store.traffic", "store.stats"),
        ("deferral", "pending_ops"),
        ("rhythm.holds", "rhythm.beat_locks"),
        ("rhythm.look", "rhythm.refresh"),
    ],
)
async def test_renamed_attributes_are_found_under_their_old_names(path: str, new: str) -> None:
    async with vox_mesh.Mesh.open_command(vox_mesh.Settings()) as mesh:
        with pytest.warns(DeprecationWarning, match=rf"(?i){path} is deprecated: use .*{new}") as seen:
            assert attrgetter(path)(mesh) == attrgetter(new)(mesh)
        assert seen[0].filename == __file__
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            attrgetter("store.nothing")(mesh)


def test_settings_have_their_backend_under_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"use settings\.backend"):
        assert vox_mesh.Settings().home is vox_mesh.Settings().backend
