"""`vox-mesh kind`: what is decided of kinds of job, for the whole mesh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import click

from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_beside
from vox_mesh.jobs.kinds import KEEP, JobKinds
from vox_mesh.jobs.queries import KindRules
from vox_mesh.mesh import Mesh
from vox_mesh.views.jobs import KindView, rules_of

_KIND: Final = click.argument("kind")
_NONE: Final = "none"


@click.group(no_args_is_help=False)
def kind() -> None:
    """Pause kinds of job, limit them, and have their inference recorded. KIND is one kind, no pattern."""


def _decide(
    command: str, kind: str, deciding: Callable[[JobKinds], Awaitable[None]], *, as_json: bool
) -> None:
    async def decide(mesh: Mesh) -> KindRules:
        await deciding(mesh.job_kinds)
        return await rules_of(mesh, kind)

    rules = run_beside(f"kind {command}", decide)
    show_one(vars(KindView.of(rules)) if as_json else _line(rules), as_json=as_json)


@kind.command()
@_KIND
@json_option
def pause(kind: str, as_json: bool) -> None:
    """Have no more jobs of KIND claimed, by anyone; those in hand go on.

    \b
    Example:
      vox-mesh kind pause cortex.extract
    """
    _decide("pause", kind, lambda kinds: kinds.pause(kind), as_json=as_json)


@kind.command()
@_KIND
@json_option
def resume(kind: str, as_json: bool) -> None:
    """Have jobs of KIND claimed again.

    \b
    Example:
      vox-mesh kind resume cortex.extract
    """
    _decide("resume", kind, lambda kinds: kinds.resume(kind), as_json=as_json)


# --- limits --------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A limit that is given; `None` is that there is to be none."""

    value: int | None
    per_ms: int | None = None


def _number(text: str) -> _Given:
    if text == _NONE:
        return _Given(None)
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a whole number nor {_NONE}")
    return _Given(int(text))


def _rate(text: str) -> _Given:
    if text == _NONE:
        return _Given(None)
    count, _, time = text.partition("/")
    if not (count.isascii() and count.isdigit() and time):
        raise click.BadParameter(f"{text!r} is neither so many in a time, such as 10/1s, nor {_NONE}")
    return _Given(int(count), round(seconds(time) * 1_000))


def _lease(text: str) -> _Given:
    return _Given(None if text == _NONE else round(seconds(text) * 1_000))


@kind.command()
@_KIND
@click.option("--running", type=_number, metavar="N|none", help="So many are in hand at a time, at the most.")
@click.option("--rate", type=_rate, metavar="N/DURATION|none", help="So many are claimed in a time.")
@click.option("--lease", type=_lease, metavar="DURATION|none", help="How long a claim holds, by default.")
@json_option
def limit(
    kind: str, running: _Given | None, rate: _Given | None, lease: _Given | None, as_json: bool
) -> None:
    """Limit jobs of KIND in the whole mesh. What is not named stays as it is; `none` is no limit.

    \b
    Example:
      vox-mesh kind limit cortex.extract --running 4 --rate 100/1m
    """
    if running is rate is lease is None:
        raise click.UsageError("no limit is given: --running, --rate or --lease", click.get_current_context())
    limits: dict[str, Any] = {
        "max_running": KEEP if running is None else running.value,
        "rate": KEEP if rate is None else rate.value,
        "per_ms": None if rate is None else rate.per_ms,
        "lease_ms": KEEP if lease is None else lease.value,
    }
    _decide("limit", kind, lambda kinds: kinds.limit(kind, **limits), as_json=as_json)


@kind.command()
@_KIND
@click.argument("switch", metavar="on|off", type=click.Choice(["on", "off"]))
@json_option
def audit(kind: str, switch: str, as_json: bool) -> None:
    """Whether a job of KIND succeeds only with a record of its inference.

    \b
    Example:
      vox-mesh kind audit cortex.extract on
    """
    _decide("audit", kind, lambda kinds: kinds.audit(kind, switch == "on"), as_json=as_json)


# --- looking -------------------------------------------------------------------------------------


@kind.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the kinds of which anything is decided.

    \b
    Example:
      vox-mesh kind list
    """
    found = run_beside("kind list", lambda mesh: mesh.job_kinds.listed())
    show_several([vars(KindView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


def _line(rules: KindRules) -> Record:
    """What is decided of a kind, as people want to see it."""
    return {
        "kind": rules.kind,
        "paused": bool(rules.is_paused),
        "running": rules.max_running,
        "rate": None if rules.rate is None else f"{rules.rate}/{_duration(rules.rate_ms or 0)}",
        "lease": None if rules.lease_ms is None else _duration(rules.lease_ms),
        "audited": bool(rules.is_audited),
    }


def _duration(time_ms: int) -> str:
    return f"{time_ms // 1_000}s" if time_ms % 1_000 == 0 else f"{time_ms}ms"
