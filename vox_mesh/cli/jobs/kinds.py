"""`vox-mesh kind`: rules for kinds of job in the whole mesh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import click

from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs.kinds import KEEP, JobKinds
from vox_mesh.jobs.queries import KindRules
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.durations import short_duration
from vox_mesh.views.jobs import KindView, rules_of

_KIND: Final = click.argument("kind")
_NONE: Final = "none"


@click.group(cls=CommandGroup, no_args_is_help=False)
def kind() -> None:
    """Pause, limit and audit kinds of job.

    KIND is one kind, not a pattern.
    """


def _change_rules(
    command: str, kind: str, change: Callable[[JobKinds], Awaitable[None]], *, as_json: bool
) -> None:
    async def apply(mesh: Mesh) -> KindRules:
        await change(mesh.job_kinds)
        return await rules_of(mesh, kind)

    rules = run_command(f"kind {command}", apply)
    show_one(vars(KindView.of(rules)) if as_json else _line(rules), as_json=as_json)


@kind.command()
@_KIND
@json_option
def pause(kind: str, as_json: bool) -> None:
    """Stop the claiming of jobs of a kind; running ones go on.

    \b
    Example:
      vox-mesh kind pause cortex.extract
    """
    _change_rules("pause", kind, lambda kinds: kinds.pause(kind), as_json=as_json)


@kind.command()
@_KIND
@json_option
def resume(kind: str, as_json: bool) -> None:
    """Allow the claiming of jobs of a kind again.

    \b
    Example:
      vox-mesh kind resume cortex.extract
    """
    _change_rules("resume", kind, lambda kinds: kinds.resume(kind), as_json=as_json)


# --- limits --------------------------------------------------------------------------------------


class _Limit(NamedTuple):
    """A limit from the command line; a value of `None` removes it."""

    value: int | None
    per_ms: int | None = None


def _number(text: str) -> _Limit:
    if text == _NONE:
        return _Limit(None)
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"must be a whole number or {_NONE}, got {text!r}")
    return _Limit(int(text))


def _rate(text: str) -> _Limit:
    if text == _NONE:
        return _Limit(None)
    count, _, time = text.partition("/")
    if not (count.isascii() and count.isdigit() and time):
        raise click.BadParameter(f"must be a number per duration, such as 10/1s, or {_NONE}, got {text!r}")
    return _Limit(int(count), round(seconds(time) * 1_000))


def _lease(text: str) -> _Limit:
    return _Limit(None if text == _NONE else round(seconds(text) * 1_000))


@kind.command()
@_KIND
@click.option("--running", type=_number, metavar="N|none", help="Maximum number of running jobs.")
@click.option("--rate", type=_rate, metavar="N/DURATION|none", help="Maximum number of claims per duration.")
@click.option("--lease", type=_lease, metavar="DURATION|none", help="Default lease of a claim.")
@json_option
def limit(
    kind: str, running: _Limit | None, rate: _Limit | None, lease: _Limit | None, as_json: bool
) -> None:
    """Limit jobs of a kind in the whole mesh.

    Limits without an option stay unchanged; `none` removes a limit.

    \b
    Example:
      vox-mesh kind limit cortex.extract --running 4 --rate 100/1m
    """
    if running is rate is lease is None:
        raise click.UsageError(
            "no limit given: pass --running, --rate or --lease", click.get_current_context()
        )
    limits: dict[str, Any] = {
        "max_running": KEEP if running is None else running.value,
        "rate": KEEP if rate is None else rate.value,
        "per_ms": None if rate is None else rate.per_ms,
        "lease_ms": KEEP if lease is None else lease.value,
    }
    _change_rules("limit", kind, lambda kinds: kinds.limit(kind, **limits), as_json=as_json)


@kind.command()
@_KIND
@click.argument("switch", metavar="on|off", type=click.Choice(["on", "off"]))
@json_option
def audit(kind: str, switch: str, as_json: bool) -> None:
    """Require inference records for jobs of a kind, or not.

    If on, a job of KIND succeeds only with a record of its inference.

    \b
    Example:
      vox-mesh kind audit cortex.extract on
    """
    _change_rules("audit", kind, lambda kinds: kinds.audit(kind, switch == "on"), as_json=as_json)


# --- reading -------------------------------------------------------------------------------------


@kind.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the kinds that have rules.

    \b
    Example:
      vox-mesh kind list
    """
    found = run_command("kind list", lambda mesh: mesh.job_kinds.listed())
    show_several([vars(KindView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


def _line(rules: KindRules) -> Record:
    """Return a kind's row of the table."""
    return {
        "kind": rules.kind,
        "paused": bool(rules.is_paused),
        "running": rules.max_running,
        "rate": None if rules.rate is None else f"{rules.rate}/{short_duration(rules.rate_ms or 0)}",
        "lease": None if rules.lease_ms is None else short_duration(rules.lease_ms),
        "audited": bool(rules.is_audited),
    }
