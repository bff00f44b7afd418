"""`vox-mesh oplog`: what was done, by whom, and the proof that the record was not changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import (
    Record,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import NotKnown
from vox_mesh.mesh import Mesh
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.settings import Settings
from vox_mesh.views.oplog import OpStateView, find_op_state, stamped_record

_LIMIT: Final = 20
_FILE: Final = click.Path(path_type=Path)


@click.group(no_args_is_help=False)
def oplog() -> None:
    """Read, verify, export and anchor the log."""


# --- reading -------------------------------------------------------------------------------------


@oplog.command()
@click.option("--follow", is_flag=True, help="Go on with new entries as they come, until Ctrl-C.")
@click.option("--node", help="Only entries of this chain.")
@click.option("--kind", help="Only ops of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LIMIT,
    show_default=True,
    help="How many to begin with.",
)
@json_option
def tail(follow: bool, node: str | None, kind: str | None, limit: int, as_json: bool) -> None:
    """Show the last entries, in the order of their commits.

    With --follow and --json each entry is a document on a line of its own.

    \b
    Example:
      vox-mesh oplog tail --follow --kind Anchor
    """
    settings = start_shared("oplog tail")
    if follow:
        asyncio.run(_follow(settings, node, kind, limit, as_json))
    else:
        show_several(asyncio.run(_tail(settings, node, kind, limit, as_json)), as_json=as_json)


async def _tail(
    settings: Settings, node: str | None, kind: str | None, limit: int, as_json: bool
) -> list[Record]:
    async with Mesh.open_command(settings) as mesh:
        entries = await mesh.oplog.tail(limit, node_id=node, kind=kind)
        return await _told(mesh, entries, as_json=as_json)


async def _told(mesh: Mesh, entries: Sequence[LogEntry], *, as_json: bool) -> list[Record]:
    if not as_json:
        return [_line(each) for each in entries]
    await mesh.rhythm.look()
    return [stamped_record(mesh, each) for each in entries]


async def _follow(settings: Settings, node: str | None, kind: str | None, limit: int, as_json: bool) -> None:
    async with Mesh.open_command(settings) as mesh:
        last_id = 0 if limit else await mesh.oplog.last_id()
        shown = _Shown(mesh, as_json)
        for entry in await mesh.oplog.tail(limit, node_id=node, kind=kind):
            await shown.next(entry)
            last_id = entry.id
        async with aclosing(mesh.oplog.follow(last_id, node_id=node, kind=kind)) as entries:
            async for entry in entries:
                await shown.next(entry)


class _Shown:
    """Prints entries one by one; which tempo they are in it looks up once in a bar, as nodes do."""

    def __init__(self, mesh: Mesh, as_json: bool) -> None:
        self._mesh = mesh
        self._as_json = as_json
        self._bar_ends_ms = 0

    async def next(self, entry: LogEntry) -> None:
        """Print it."""
        if not self._as_json:
            show_lines(table([_line(entry)])[1:])
            return
        rhythm = self._mesh.rhythm
        if (now_ms := rhythm.times.now_ms) >= self._bar_ends_ms:
            await rhythm.look()
            self._bar_ends_ms = rhythm.timeline.window_at(now_ms).end_ms
        show_next(stamped_record(self._mesh, entry))


def _line(entry: LogEntry) -> Record:
    """An entry as people want to see it."""
    verdict = "accepted" if entry.accepted else "refused"
    return {
        "hlc": entry.hlc,
        "node_id": entry.node_id,
        "seq": entry.seq,
        "op_id": entry.op_id,
        "kind": entry.kind,
        "verdict": f"{verdict} ({entry.reason})" if entry.reason else verdict,
        "payload": entry.payload,
    }


@oplog.command()
@click.argument("op_id", required=False)
@json_option
def waiting(op_id: str | None, as_json: bool) -> None:
    """Show which ops wait for others to be applied first, and for which.

    With OP_ID, how that one stands: applied, refused, waiting, or dropped for good.

    \b
    Example:
      vox-mesh oplog waiting
    """
    settings = start_shared("oplog waiting")
    if op_id is None:
        found = asyncio.run(_waiting(settings))
        show_several([each if as_json else _in_words(each) for each in found], as_json=as_json)
    else:
        one = asyncio.run(_standing(settings, op_id))
        show_one(one if as_json else _in_words(one), as_json=as_json)


async def _waiting(settings: Settings) -> list[Record]:
    async with Mesh.open_command(settings) as mesh:
        return [vars(OpStateView.of(each)) for each in await mesh.deferral.waiting()]


async def _standing(settings: Settings, op_id: str) -> Record:
    async with Mesh.open_command(settings) as mesh:
        return vars(await find_op_state(mesh, op_id))


def _in_words(record: Record) -> Record:
    waits_for = ", ".join(f"{dep['op_id']} ({dep['standing']})" for dep in record["waits_for"])
    return {**record, "waits_for": waits_for}


# --- proving -------------------------------------------------------------------------------------


@oplog.command()
@click.option("--node", help="Only this chain.")
@click.option("--from-file", "file", type=_FILE, help="A file that `vox-mesh oplog export` wrote.")
@json_option
def verify(node: str | None, file: Path | None, as_json: bool) -> int:
    """Recompute every hash, number, link and signature, and name the first broken entry of each chain.

    Ends with 0 if all is as it was written, 1 if anything is not. With --from-file nothing else is needed:
    no database, no settings and no keys but those in the file. Compare the owner's key with the one you know.

    \b
    Example:
      vox-mesh oplog verify --from-file log.jsonl
    """
    if file is None:
        chains, owner_key = asyncio.run(_verify(start_shared("oplog verify"), node))
    else:
        header, chains = verify_export(file, node)
        owner_key = None if header.owner is None else header.owner.public_key
    if node is not None and not chains:
        raise NotKnown(f"the log has no chain of {node!r}", hint="see `vox-mesh oplog verify`")
    if as_json:
        show_several([chain._asdict() for chain in chains], as_json=True)
    else:
        show_lines(_found(chains, owner_key))
    return ExitCode.NO if any(chain.problem for chain in chains) else ExitCode.DONE


async def _verify(settings: Settings, node: str | None) -> tuple[list[ChainReport], str | None]:
    async with Mesh.open_command(settings) as mesh:
        owner = await mesh.roles.owner()
        return await mesh.oplog.verify(node), None if owner is None else owner.public_key


def _found(chains: list[ChainReport], owner_key: str | None) -> list[str]:
    columns = ("node_id", "entries", "sealed_to", "anchored_to")
    lines = table([{name: getattr(chain, name) for name in columns} for chain in chains])
    broken = [chain for chain in chains if chain.problem is not None]
    for chain in broken:
        where = "" if chain.seq is None else f", entry {chain.seq}"
        op = "" if chain.op_id is None else f" ({chain.op_id})"
        lines.append(f"broken: {chain.node_id}{where}{op}: {chain.problem}")
    count = sum(chain.entries for chain in chains)
    verdict = f"{len(broken)} broken" if broken else "all as they were written"
    where = "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
    lines.append(f"{count} entries in {where}: {verdict}")
    return [*lines, f"the owner's key: {owner_key or 'there is none'}"]


@oplog.command()
@click.argument("file", type=_FILE)
@json_option
def export(file: Path, as_json: bool) -> None:
    """Write the whole log, and the keys to verify it with, to a new file of JSON lines.

    \b
    Example:
      vox-mesh oplog export log.jsonl
    """
    show_one(asyncio.run(_export(start_shared("oplog export"), file)), as_json=as_json)


async def _export(settings: Settings, file: Path) -> Record:
    async with Mesh.open_command(settings) as mesh:
        done = await export_log(mesh.oplog, settings.scope_id, settings.repository_id, file)
    return {"file": str(done.path), "entries": done.entries, "chains": done.chains, "bytes": done.bytes}


@oplog.command()
@json_option
def anchor(as_json: bool) -> None:
    """Record where all other chains end, so that cutting one off can be seen.

    A live node does so once a minute.

    \b
    Example:
      vox-mesh oplog anchor
    """
    show_one(asyncio.run(_anchor(start_shared("oplog anchor"), as_json)), as_json=as_json)


async def _anchor(settings: Settings, as_json: bool) -> Record:
    async with Mesh.open_command(settings) as mesh:
        outcome = await mesh.oplog.anchor()
        (told,) = await _told(mesh, [await mesh.oplog.find(outcome.key)], as_json=as_json)
        return told
