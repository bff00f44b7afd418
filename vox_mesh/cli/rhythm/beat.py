"""`vox-mesh beat`: a metronome."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import click

from vox_mesh.cli.node.signals import run_until_signalled
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import json_option, printable, show_lines, show_next, show_one
from vox_mesh.cli.support.start import start
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.settings import Settings
from vox_mesh.views.rhythm import BeatView, beat_of

_LONGEST_STRIP: Final = 32
"""Of a longer bar only the numbers are told."""

_NEW_LINE: Final = "\r\x1b[K"


class _BeatSigns(NamedTuple):
    """What beats are drawn with: those that were, the one that is, and those to come."""

    past: str
    now: str
    coming: str
    phase: str


_DRAWN: Final = _BeatSigns("●", "◉", "○", "│")
_ASCII: Final = _BeatSigns("=", "#", "-", "|")


@click.command()
@click.option("--follow", is_flag=True, help="Go on with every beat, until Ctrl-C.")
@json_option
def beat(follow: bool, as_json: bool) -> int:
    """Show the beat of now: where in the bar it is, its phase, the tempo, and who leads.

    With --follow a terminal shows one line that beats, and everything else gets a line for each beat; with
    --json each beat is a document on a line of its own.

    \b
    Example:
      vox-mesh beat --follow
    """
    return run_until_signalled(_beat(start(), follow=follow, as_json=as_json))


async def _beat(settings: Settings, *, follow: bool, as_json: bool) -> int:
    async with Mesh.open_command(settings) as mesh:
        if follow:
            await _follow(mesh, as_json=as_json)
        else:
            seen = await beat_of(mesh)
            show_one(vars(seen), as_json=True) if as_json else show_lines([_line(seen, mesh)])
    return ExitCode.DONE


async def _follow(mesh: Mesh, *, as_json: bool) -> None:
    is_redrawn = not as_json and sys.stdout.isatty()
    try:
        async with aclosing(_beats(mesh)) as beats:
            async for seen in beats:
                if as_json:
                    show_next(vars(seen))
                elif is_redrawn:
                    width = shutil.get_terminal_size().columns - 1
                    click.echo(_NEW_LINE + _line(seen, mesh)[:width], nl=False)
                else:
                    show_lines([_line(seen, mesh)])
                    sys.stdout.flush()
    finally:
        if is_redrawn:
            click.echo()


async def _beats(mesh: Mesh) -> AsyncGenerator[BeatView, None]:
    """The beat of now, and then each when it begins. In every bar it is looked what was announced."""
    seen = await beat_of(mesh)
    yield seen
    leader = seen.leader
    async for frame in mesh.rhythm.beats():
        if frame.downbeat:
            with suppress(MeshError):  # the beat goes on while the database is away
                leader = (await beat_of(mesh)).leader
        yield BeatView.of(frame, leader)


def _line(seen: BeatView, mesh: Mesh) -> str:
    left_s = max(0, milliseconds_at(seen.next_downbeat_at) - mesh.rhythm.times.now_ms) / 1_000
    words = [
        _strip(seen, mesh.rhythm.policy.phase_beats),
        f"{seen.beat_index}/{seen.bar_len_beats} {seen.phase:<6}",
        f"{seen.tempo_bpm:g} bpm",
        f"downbeat in {left_s:.1f} s",
        f"leader {seen.leader or '-'}",
        seen.cluster_id,
    ]
    if seen.source == TempoSource.MEDIAN:
        words.append("(policies differ: the median)")
    return printable("  ".join(word for word in words if word))


def _strip(seen: BeatView, phases: Mapping[str, int]) -> str:
    """The bar as a strip of beats, phase by phase."""
    if seen.bar_len_beats > _LONGEST_STRIP or sum(phases.values()) != seen.bar_len_beats:
        return ""
    signs = _DRAWN if (sys.stdout.encoding or "").lower() == "utf-8" and sys.stdout.isatty() else _ASCII
    strip, first = "", 1
    for beats in phases.values():
        drawn = (_sign(index, seen.beat_index, signs) for index in range(first, first + beats))
        strip += signs.phase + "".join(drawn)
        first += beats
    return strip + signs.phase


def _sign(index: int, now: int, signs: _BeatSigns) -> str:
    if index == now:
        return signs.now
    return signs.past if index < now else signs.coming
