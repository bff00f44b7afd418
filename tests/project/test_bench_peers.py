"""Our side of the comparisons with peers; theirs need services that are not installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import locks
from bench.peers.channels.channel import stamp
from bench.peers.channels.registry import CHANNELS
from bench.peers.servers import found, lacks

_COUNT = 3


@pytest.mark.parametrize("kind", CHANNELS)
async def test_our_channels_bring_what_was_sent(kind: str, tmp_path: Path) -> None:
    """What is sent is taken, as often as asked."""
    service = CHANNELS[kind]["file"]
    with service.serve(tmp_path) as place:
        async with service.open(place) as channel:
            for _ in range(2):
                for _ in range(_COUNT):
                    await channel.send(stamp())
                delays, _ = await channel.take(_COUNT)
                assert len(delays) == _COUNT
                assert min(delays) >= 0.0


async def test_our_lock_is_free_again_after_each_pair(tmp_path: Path) -> None:
    """Each caller can take the same lock, one after the other."""
    with locks.OURS_IN_FILE.serve(tmp_path) as place:
        async with locks.OURS_IN_FILE.open(place) as pairs:
            assert len(pairs) == locks.CALLERS
            for pair in pairs:
                await pair("task:baton")


def test_a_missing_program_is_named() -> None:
    """The reason names the program, so that it can be installed."""
    assert found("no-such-program") is None
    assert lacks("no-such-program")() == "no no-such-program was found"
