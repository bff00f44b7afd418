"""`vox-mesh beat` and `vox-mesh ucxl`: the current beat, and the time that an address means."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final, NamedTuple

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import CommandGroup, json_option, printable, show_lines, show_next, show_one
from vox_mesh.cli.support.session import run_on_mesh, run_until_signalled, start
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.rhythm.plan import BeatFrame, TempoSource
from vox_mesh.model.rhythm.ucxl import parse
from vox_mesh.settings import Settings
from vox_mesh.views.rhythm import BeatView, beat_of, moment_of

_LONGEST_STRIP: Final = 32
"""A longer bar is shown as numbers only."""

_NEW_LINE: Final = "\r\x1b[K"


class _BeatSigns(NamedTuple):
    """The characters of past, current and future beats, and of the border of a phase."""

    past: str
    now: str
    coming: str
    phase: str


_DRAWN: Final = _BeatSigns("●", "◉", "○", "│")
_ASCII: Final = _BeatSigns("=", "#", "-", "|")


@click.command()
@click.option("--follow", is_flag=True, help="Follow every beat until Ctrl-C.")
@json_option
def beat(follow: bool, as_json: bool) -> int:
    """Show the current beat, its phase, the tempo and the leader.

    With --follow a terminal updates one line; otherwise each beat is a line, and with --json a document on
    its own line.

    \b
    Example:
      vox-mesh beat --follow
    """
    return run_until_signalled(_beat(start("beat"), follow=follow, as_json=as_json))


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
    """Yield the current beat, then each when it begins. The leader is read once per bar."""
    async with _listening(mesh.rhythm.beats()) as frames:  # a beat may begin while the current one is read
        seen = await beat_of(mesh)
        yield seen
        leader = seen.leader
        async for frame in frames:
            if frame.beat_epoch <= seen.beat_epoch:
                continue
            if frame.downbeat:
                with suppress(MeshError):  # beats continue while the database is away
                    leader = (await beat_of(mesh)).leader
            yield BeatView.of_frame(frame, leader)


@asynccontextmanager
async def _listening(beats: AsyncGenerator[BeatFrame, None]) -> AsyncIterator[AsyncIterator[BeatFrame]]:
    """Yield the beats from now on, not only from when the first one is asked for."""
    first = asyncio.ensure_future(anext(beats, None))
    await asyncio.sleep(0)

    async def frames() -> AsyncIterator[BeatFrame]:
        if (frame := await first) is not None:
            yield frame
        async for frame in beats:
            yield frame

    try:
        yield frames()
    finally:
        first.cancel()
        await asyncio.wait([first])
        await beats.aclose()


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
        words.append("(policies differ: median in force)")
    return printable("  ".join(word for word in words if word))


def _strip(seen: BeatView, phases: Mapping[str, int]) -> str:
    """Draw the bar as a strip of beats, phase by phase."""
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


@click.group(cls=CommandGroup, no_args_is_help=False)
def ucxl() -> None:
    """Resolve the times in UCXL addresses.

    A time is ;beats=^^N, ;beats=~~N or ;phase=NAME after an address ucxl://….
    """


@ucxl.command()
@click.argument("address")
@json_option
def resolve(address: str, as_json: bool) -> None:
    """Resolve an address to a time, beat, bar and phase.

    The mesh's tempo and the current time apply. ;beats=^^N is N beats from now, ;beats=~~N is N beats ago.
    ;phase=NAME is the next moment of that phase from there on, or with ~~ the last one before. ;bar=B#beat=N
    is deprecated; it counts bars from the first.

    \b
    Example:
      vox-mesh ucxl resolve 'ucxl://proj:any/*/task/ingest;beats=^^4;phase=work'
    """
    parsed = parse(address)
    moment = asyncio.run(run_on_mesh(start("ucxl resolve"), lambda mesh: moment_of(mesh, parsed)))
    show_one(vars(moment), as_json=as_json)
