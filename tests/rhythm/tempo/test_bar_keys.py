"""Keys of agents: they change with every bar, and are valid for their purpose and a few bars only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.oplog.authoring import RestartableNodes
from tests.support.rhythm.grounds import MovableClock, player
from vox_mesh import Mesh
from vox_mesh.errors import BadSettings, BadValue
from vox_mesh.model.rhythm.window_keys import RELAY, WindowKeyFault, check
from vox_mesh.rhythm.bar_keys import BarKeys
from vox_mesh.testing.harness import IsolatedSettings

TOKEN = "0123456789abcdef0123456789abcdef"


async def test_a_key_changes_on_the_downbeat_and_is_accepted_for_one_more_bar(
    there: RestartableNodes, hand: MovableClock
) -> None:
    async with there.node() as node:
        context = player(node, hand).ground
        keys = BarKeys(context, lambda: TOKEN)
        hand.to(0, 8)
        key = keys.key("review")
        assert keys.key("review") == key
        hand.to(1)
        assert keys.key("review") != key
        assert keys.fault("review", key) is None
        assert keys.fault("deploy", key) is WindowKeyFault.ROLE
        assert BarKeys(context, lambda: TOKEN[::-1]).fault("review", key) is WindowKeyFault.WRONG
        assert check(TOKEN, key, context.mesh, RELAY, hand.now_ms, 1) is WindowKeyFault.ROLE
        hand.to(2, ms=-1)
        assert keys.fault("review", key) is None
        hand.to(2)
        assert keys.fault("review", key) is WindowKeyFault.STALE
        hand.to(-1, ms=-1)
        assert keys.fault("review", key) is WindowKeyFault.EARLY


@pytest.mark.parametrize("purpose", ["", "Review", "agent:review", "a" * 65, "a b"])
async def test_a_purpose_is_one_plain_word(there: RestartableNodes, hand: MovableClock, purpose: str) -> None:
    async with there.node() as node:
        keys = BarKeys(player(node, hand).ground, lambda: TOKEN)
        with pytest.raises(BadValue, match="purpose of a key must be"):
            keys.key(purpose)


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., IsolatedSettings]:
    """Settings of a mesh in memory."""
    return lambda **more: IsolatedSettings(home_dir=tmp_path / "home", http=False, **more)


async def test_agents_of_a_mesh_accept_each_others_keys_and_no_key_is_logged(
    settings_of: Callable[..., IsolatedSettings], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Mesh.open(settings_of(token=TOKEN)) as mesh:
        key = mesh.rhythm.key("review")
        assert mesh.rhythm.accepts("review", key)
        assert not mesh.rhythm.accepts("review", key[:-1])
        assert not mesh.rhythm.accepts("deploy", key)
        await mesh.rhythm.policies.refresh()
    assert key not in caplog.text
    assert TOKEN not in caplog.text


async def test_without_a_token_there_is_no_key(settings_of: Callable[..., IsolatedSettings]) -> None:
    async with Mesh.open(settings_of()) as mesh:
        with pytest.raises(BadSettings, match="keys of bars need a token"):
            mesh.rhythm.key("review")
