"""`vox-mesh score`: check a score before it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final, NamedTuple

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import print_faults, read_file
from vox_mesh.cli.support.output import CommandGroup, fields, json_option, printable, show_lines, show_one
from vox_mesh.errors import BadScore
from vox_mesh.model.rhythm.score import (
    CHECKPOINT,
    DEFER,
    EMIT,
    FALLBACK,
    Score,
    ScoreFile,
    Span,
    parse_score,
)
from vox_mesh.model.rhythm.tempo import Tempo

_WIDTH: Final = 80
_STRIP_WIDTH: Final = 65
_WIDEST_BEAT: Final = 6
_MARGIN: Final = 4
_NAME_WIDTH: Final = 9


class _StripSigns(NamedTuple):
    """The characters of a strip."""

    phase: str
    beat: str
    line: str


_ASCII: Final = _StripSigns("|", "+", "-")
_DRAWN: Final = _StripSigns("│", "┼", "─")


@click.group(cls=CommandGroup, no_args_is_help=False)
def score() -> None:
    """Check scores: how a task divides its work into beats."""


@score.command()
@click.argument("file")
@json_option
def check(file: str, as_json: bool) -> int:
    """Check a score and draw the beats of each phrase.

    FILE may be - for stdin. The faults are listed line by line, and end with 1. It needs no mesh.

    \b
    Example:
      vox-mesh score check ingest.yaml
    """
    try:
        found = parse_score(*read_file(file))
    except BadScore as bad:
        if as_json:
            show_one({"is_good": False, "faults": bad.faults}, as_json=True)
        else:
            print_faults(bad, file)
        return ExitCode.NO
    if as_json:
        show_one(
            {"is_good": True, **found.model_dump(mode="json"), "phrases": _phrases(found.score)}, as_json=True
        )
    else:
        signs = _DRAWN if sys.stdout.isatty() and sys.stdout.encoding.lower() == "utf-8" else _ASCII
        show_lines([*map(printable, _lines(found, signs))])
    return ExitCode.DONE


def _phrases(score: Score) -> list[dict[str, Any]]:
    return [
        {"attempt": number, "beats": sum(score.attempt(number).values()), "phases": score.attempt(number)}
        for number in _attempts(score)
    ]


def _attempts(score: Score) -> range:
    return range(1, score.retry.max_phrases + 1)


# --- the picture -----------------------------------------------------------------------------------


def _lines(found: ScoreFile, signs: _StripSigns) -> Iterator[str]:
    score = found.score
    width = min(_WIDEST_BEAT, _STRIP_WIDTH // score.bar_len)
    yield _ruler(score.bar_len, width)
    for number in _attempts(score):
        yield _row(score, number, width, signs)
    yield ""
    for name, text in _words(found):
        first, *more = wrap(text, _WIDTH - _NAME_WIDTH)
        yield f"{name:<{_NAME_WIDTH}}{first}"
        yield from (f"{'':<{_NAME_WIDTH}}{line}" for line in more)
    if found.budget is not None:
        yield from ("budget", *fields(found.budget, "  "))


def _ruler(beats: int, width: int) -> str:
    """Return the numbers of beats, as many as fit."""
    step = next(step for step in (1, 2, 4, 8) if step * width >= 4)
    numbers = "".join(f"{beat:<{step * width}}" for beat in range(1, beats + 1, step))
    return f"{'':{_MARGIN}}{numbers}".rstrip()


def _row(score: Score, number: int, width: int, signs: _StripSigns) -> str:
    """Return the strip of a phrase: its phases to scale, and the number of beats."""
    spans = score.boundaries(number)
    strip = "".join(_stretch(span, width, signs) for span in spans) + (signs.phase if width > 1 else "")
    beats = _beats(spans[-1].ends)
    return f"{number:>{_MARGIN - 1}} {strip:<{score.bar_len * width + 1}}  {beats}"


def _stretch(span: Span, width: int, signs: _StripSigns) -> str:
    beats = span.ends - span.begins
    if width == 1:
        return span.phase[0] * beats
    line = signs.phase + (signs.line * (width - 1) + signs.beat) * beats
    name = span.phase[: beats * width - 1]
    return line[0] + name + line[1 + len(name) : beats * width]


# --- the text below the picture ---------------------------------------------------------------------


def _words(found: ScoreFile) -> Iterator[tuple[str, str]]:
    score = found.score
    if found.ucxl is not None:
        yield "for", found.ucxl
    if score.tempo is not None:
        beat_ms = Tempo(score.tempo, score.bar_len).beat_ms
        lasts = f"a beat of {beat_ms / 1_000:g} s, a phrase of {score.bar_len * beat_ms / 1_000:g} s"
        yield "tempo", f"{score.tempo:g} beats a minute: {lasts}; the tempo of the mesh may differ"
    yield "phases", ", ".join(f"{phase} {_beats(beats)}" for phase, beats in score.attempt(1).items())
    yield "waits", ", ".join(_wait(name, beats, score.bar_len) for name, beats in score.wait_budget)
    yield "", f"then {_steps(score.escalation.on_wait_exhausted)}"
    yield "overrun", f"a phase is cut off at its end, then {_steps(score.escalation.on_overrun)}"
    yield "retries", _retries(score)


def _wait(name: str, beats: int, bar_len: int) -> str:
    if beats == 0:
        return f"not for {name}"
    never = " (the phrase ends before)" if beats >= bar_len else ""
    return f"{_beats(beats)} in all for {name}{never}"


def _retries(score: Score) -> str:
    phrases = score.retry.max_phrases
    if phrases == 1:
        return "none: one phrase"
    if score.retry.backoff == "none":
        return f"up to {phrases} phrases in all, each as long as the first"
    return f"up to {phrases} phrases in all, phases halved each time, to 1 beat at least"


def _steps(steps: tuple[str, ...]) -> str:
    return ", ".join(map(_step, steps)) or "nothing more: the phrase ends"


def _step(step: str) -> str:
    kind, _, name = step.partition(":")
    words = {
        CHECKPOINT: "keep a checkpoint",
        DEFER: "leave the rest to the next phrase",
        EMIT: f"emit {name}",
        FALLBACK: f"fall back to {name}",
    }
    return words.get(step) or words[kind]


def _beats(count: int) -> str:
    return f"{count} beat" if count == 1 else f"{count} beats"
