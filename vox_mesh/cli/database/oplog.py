"""`vox-mesh oplog`: read, verify, export and anchor the signed op log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.jobs.job_output import short_id
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    printable,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_quickly
from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.jobs.job_trace import MAX_JOBS, JobTrace
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.oplog.archive.false_segments import missing_error
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.oplog.archive.segment_ops import RecordedSegment, SegmentOps
from vox_mesh.oplog.export import ExportVerification, export_log, verify_export
from vox_mesh.oplog.pages import EntryFilter
from vox_mesh.runtime.archive.deletion import delete_archived
from vox_mesh.runtime.archive.leading import void_segment
from vox_mesh.runtime.archive_target import archive_target
from vox_mesh.runtime.checkpoint_file import CheckpointFile
from vox_mesh.store.targets.target import FileTarget
from vox_mesh.views.graphs.job_trace import TraceView, find_trace
from vox_mesh.views.oplog import OpStateView, find_op_state, stamped_record
from vox_mesh.views.rhythm import announced_stamp

_LIMIT: Final = 20
_FILE: Final = click.Path(path_type=Path)


@click.group(cls=CommandGroup, no_args_is_help=False)
def oplog() -> None:
    """Read, verify, export and anchor the op log."""


# --- reading -------------------------------------------------------------------------------------


@oplog.command()
@click.option("--follow", is_flag=True, help="Follow new entries until Ctrl-C.")
@click.option("--node", help="Author of the entries to show.")
@click.option("--kind", help="Kind of the entries to show.")
@click.option("--agent", help="Agent that acted.")
@click.option("--job", help="Job that the entries are about.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_LIMIT,
    show_default=True,
    help="Number of past entries to show.",
)
@json_option
def tail(
    follow: bool,
    node: str | None,
    kind: str | None,
    agent: str | None,
    job: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the last entries in commit order.

    With --follow and --json each entry is a document on its own line.

    \b
    Example:
      vox-mesh oplog tail --follow --kind Anchor
    """

    async def wanted(mesh: Mesh) -> EntryFilter:
        job_id = None if job is None else (await mesh.jobs.find(job)).job_id
        return EntryFilter(node, kind, agent, job_id)

    async def keep_reading(mesh: Mesh) -> None:
        await _follow(mesh, await wanted(mesh), limit, as_json)

    async def read(mesh: Mesh) -> list[Record]:
        entries = await mesh.oplog.tail(limit, **(await wanted(mesh))._asdict())
        return await _records(mesh, entries, as_json=as_json)

    if follow:
        run_command("oplog tail", keep_reading)
    else:
        show_several(run_command("oplog tail", read), as_json=as_json)


async def _records(mesh: Mesh, entries: Sequence[LogEntry], *, as_json: bool) -> list[Record]:
    if not as_json:
        return [_line(each) for each in entries]
    await mesh.rhythm.refresh()
    return [stamped_record(mesh, each) for each in entries]


async def _follow(mesh: Mesh, wanted: EntryFilter, limit: int, as_json: bool) -> None:
    last_id = 0 if limit else await mesh.oplog.last_id()
    printer = _EntryPrinter(mesh, as_json)
    for entry in await mesh.oplog.tail(limit, **wanted._asdict()):
        await printer.print(entry)
        last_id = entry.id
    async with aclosing(mesh.oplog.follow(last_id, **wanted._asdict())) as entries:
        async for entry in entries:
            await printer.print(entry)


class _EntryPrinter:
    """Prints entries one by one; the tempo that stamps them is read once per bar, as nodes do."""

    def __init__(self, mesh: Mesh, as_json: bool) -> None:
        self._mesh = mesh
        self._as_json = as_json
        self._bar_ends_ms = 0

    async def print(self, entry: LogEntry) -> None:
        """Print an entry."""
        if not self._as_json:
            show_lines(table([_line(entry)])[1:])
            return
        rhythm = self._mesh.rhythm
        if (now_ms := rhythm.times.now_ms) >= self._bar_ends_ms:
            await rhythm.refresh()
            self._bar_ends_ms = rhythm.timeline.window_at(now_ms).end_ms
        show_next(stamped_record(self._mesh, entry))


def _line(entry: LogEntry) -> Record:
    """Return an entry's row of the table."""
    verdict = "accepted" if entry.accepted else "refused"
    return {
        "hlc": entry.hlc,
        "node_id": entry.node_id,
        "agent": entry.agent,
        "seq": entry.seq,
        "op_id": entry.op_id,
        "kind": entry.kind,
        "verdict": f"{verdict} ({entry.reason})" if entry.reason else verdict,
        "payload": entry.payload,
    }


@oplog.command()
@click.argument("job")
@json_option
def trace(job: str, as_json: bool) -> None:
    """Show the ops that led to a job's state.

    Below each job are its ops, the newest first, and the jobs that it waited for. The op that fired a rule
    is below the op that scheduled its job.

    \b
    Example:
      vox-mesh oplog trace 298aaf4c
    """
    found = run_command("oplog trace", lambda mesh: find_trace(mesh, job))
    if as_json:
        show_one(asdict(TraceView.of(found)), as_json=True)
        return
    show_lines([*_trace_lines(found)])
    if found.is_cut:
        show_lines([f"only the newest {MAX_JOBS} jobs are shown"])


def _trace_lines(found: JobTrace) -> Iterator[str]:
    """Draw a tree: below each job its ops, newest first, and the jobs that it waited for; each once."""
    jobs, unfolded = {each.job_id: each for each in found.jobs}, set[str]()
    left = [(found.jobs[0].job_id, "", "")]
    while left:
        name, own, inner = left.pop()
        job = jobs[name]
        yield printable(f"{own}{short_id(name)} {job.kind} {job.state}{' (see above)' * (name in unfolded)}")
        if name in unfolded:
            continue
        unfolded.add(name)
        below = f"{inner}{'│' if job.predecessors else ' '} "
        for entry in reversed(job.ops):
            verdict = "" if entry.accepted else f" refused ({entry.reason})"
            who = f"{entry.node_id} {entry.agent or '-'}"
            yield printable(f"{below}{entry.kind} {entry.op_id} {entry.hlc} {who}{verdict}")
        for place, each in enumerate(reversed(job.predecessors)):
            branch, rest = ("└─ ", "   ") if place == 0 else ("├─ ", "│  ")
            left.append((each, inner + branch, inner + rest))


@oplog.command()
@click.argument("op_id", required=False)
@json_option
def waiting(op_id: str | None, as_json: bool) -> None:
    """List ops that wait for other ops to be applied.

    With OP_ID, show the state of that op: applied, refused, waiting or dropped.

    \b
    Example:
      vox-mesh oplog waiting
    """
    if op_id is None:
        found = [
            vars(OpStateView.of(each))
            for each in run_command("oplog waiting", lambda mesh: mesh.pending_ops.waiting())
        ]
        show_several([each if as_json else _in_words(each) for each in found], as_json=as_json)
    else:
        one = vars(run_command("oplog waiting", lambda mesh: find_op_state(mesh, op_id)))
        show_one(one if as_json else _in_words(one), as_json=as_json)


def _in_words(record: Record) -> Record:
    waits_for = ", ".join(f"{dep['op_id']} ({dep['standing']})" for dep in record["waits_for"])
    return {**record, "waits_for": waits_for}


# --- proving -------------------------------------------------------------------------------------


@oplog.command()
@click.option("--node", help="Author of the chain to verify.")
@click.option("--from-file", "file", type=_FILE, help="File written by `vox-mesh oplog export`.")
@click.option(
    "--owner-key", metavar="ed25519:HEX", help="Public key of the owner.", show_default="VOX_MESH_OWNER_KEY"
)
@click.option("--since", type=_FILE, help="Earlier export: the log must continue it.")
@click.option("--archive", is_flag=True, help="Read the files of the archive too.")
@click.option("--incremental", is_flag=True, help="Go on from the last verified seals.")
@json_option
def verify(
    node: str | None,
    file: Path | None,
    owner_key: str | None,
    since: Path | None,
    archive: bool,
    incremental: bool,
    as_json: bool,
) -> int:
    """Verify every hash, number, link and signature.

    Names the first broken entry of each chain, and completions of jobs that a route did not allow. Compares
    the log with what the nodes of this home remember: it may have been rolled back, wiped or replaced. Ends
    with 0 if the log is intact, with 1 if not. --from-file needs no database, no settings and no keys but
    those in the file: pass the owner's key, as you know it, with --owner-key. --archive reads archived
    entries from their files, which must be the recorded ones, and compares them with the database.
    --incremental reads the entries since the last intact verification of this home, and all without one.

    \b
    Example:
      vox-mesh oplog verify --from-file log.jsonl --since earlier.jsonl
    """
    if owner_key is not None and not is_public_key(owner_key):
        message = f"must be ed25519: and 64 hex digits, got {owner_key!r}"
        raise click.BadParameter(message, param_hint="--owner-key")
    if archive and file is not None:
        raise click.UsageError("--archive and --from-file can't be used together")
    if incremental and (archive or node is not None or file is not None):
        raise click.UsageError("--incremental can't be used with --archive, --node or --from-file")
    earlier = None if since is None else _earlier(since)
    if file is None:
        settings = start_quickly("oplog verify")
        target = archive_target(settings) if archive else None
        known = CheckpointFile(settings)
        work = run_on_mesh(
            settings, lambda mesh: _verify(mesh, node, owner_key, earlier, target, known, incremental)
        )
        chains, known_key = asyncio.run(work)
    else:
        heads = () if earlier is None else earlier.ends
        header, chains, _, keys = verify_export(file, node, owner_key=owner_key, heads=heads)
        known_key = None if header.owner is None else header.owner.public_key
        chains += _foreign(earlier, keys)
    if node is not None and not chains:
        raise NotKnown(f"chain {node!r} not found", hint="run `vox-mesh oplog verify` to list all chains")
    if as_json:
        show_several([chain._asdict() for chain in chains], as_json=True)
    else:
        show_lines(_report(chains, known_key))
    return ExitCode.NO if any(chain.problem for chain in chains) else ExitCode.DONE


def _earlier(since: Path) -> ExportVerification:
    """Return an earlier export, verified: only an intact one proves anything."""
    earlier = verify_export(since)
    for chain in earlier.chains:
        if chain.problem is not None:
            raise BadValue(
                f"{since} is not intact: {chain.node_id}: {chain.problem}",
                hint=f"run `vox-mesh oplog verify --from-file {since}`",
            )
    return earlier


async def _verify(
    mesh: Mesh,
    node: str | None,
    owner_key: str | None,
    earlier: ExportVerification | None,
    archive: FileTarget | None,
    known: CheckpointFile,
    incremental: bool,
) -> tuple[list[ChainReport], str | None]:
    if owner_key is not None:
        mesh.ownership.pin(owner_key)
    if earlier is not None and earlier.header[:2] != mesh.store.mesh_id:
        raise BadValue("the earlier export is of another mesh", hint="pass an export of this one")
    begun = await known.load() if incremental else None
    chains = await mesh.oplog.verify(node, () if earlier is None else earlier.ends, archive, begun)
    await known.keep(mesh.oplog.checkpoint)
    owners = await mesh.ownership.succession()
    if owners is None:
        return chains, None
    return [*chains, *_foreign(earlier, owners.keys)], owners.owner.public_key


def _foreign(earlier: ExportVerification | None, keys: Sequence[str]) -> list[ChainReport]:
    """Return a report if the owner of an earlier export is none of the owners with these keys."""
    if earlier is None or earlier.header.owner is None or earlier.header.owner.public_key in keys:
        return []
    key = earlier.header.owner.public_key
    return [ChainReport("", 0, 0, 0, f"no owner of the mesh has the key {key} of the earlier export")]


def _report(reports: list[ChainReport], owner_key: str | None) -> list[str]:
    columns = ("node_id", "entries", "sealed_to", "anchored_to")
    chains = [report for report in reports if report.node_id]
    lines = table([{name: getattr(chain, name) for name in columns} for chain in chains])
    broken = [report for report in reports if report.problem is not None]
    for chain in broken:
        if not chain.node_id:
            lines.append(f"broken: {chain.problem}")
            continue
        where = "" if chain.seq is None else f", entry {chain.seq}"
        op = "" if chain.op_id is None else f" ({chain.op_id})"
        lines.append(f"broken: {chain.node_id}{where}{op}: {chain.problem}")
    count = sum(chain.entries for chain in chains)
    verdict = f"{len(broken)} broken" if broken else "intact"
    where = "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
    lines.append(f"{count} entries in {where}: {verdict}")
    return [*lines, f"owner's key: {owner_key or 'none'}"]


@oplog.command()
@click.argument("file", type=_FILE)
@json_option
def export(file: Path, as_json: bool) -> None:
    """Export the whole log, with its keys, as JSON lines.

    \b
    Example:
      vox-mesh oplog export log.jsonl
    """
    show_one(run_command("oplog export", lambda mesh: _export(mesh, file)), as_json=as_json)


async def _export(mesh: Mesh, file: Path) -> Record:
    scope_id, repository_id, _ = mesh.store.writer_id
    done = await export_log(mesh.oplog, scope_id, repository_id, file, await announced_stamp(mesh))
    return {"file": str(done.path), "entries": done.entries, "chains": done.chains, "bytes": done.bytes}


@oplog.command()
@click.option(
    "--older-than",
    type=seconds,
    metavar="DURATION",
    show_default="VOX_ARCHIVE_AFTER",
    help="Age from which on entries are archived.",
)
@click.option(
    "--delete-older-than",
    type=seconds,
    metavar="DURATION",
    help="Age from which on archived entries are deleted.",
)
@click.option("--list", "only_list", is_flag=True, help="List the segments that the log records.")
@click.option(
    "--void", type=click.IntRange(1), metavar="NUMBER", help="Declare a false segment void, as the owner."
)
@json_option
def archive(
    older_than: float | None,
    delete_older_than: float | None,
    only_list: bool,
    void: int | None,
    as_json: bool,
) -> None:
    """Copy old entries to the archive, as signed files.

    Each file has a segment of the log: all entries after one commit and up to another. The log records its
    digest, so `vox-mesh oplog verify --archive` notices a file that was changed, replaced or lost.

    Entries stay in the database. With --delete-older-than, archived entries are deleted that are at least
    this old and that nothing needs: only the owner's node may. Nothing is deleted while the archive lacks a
    file.

    With --void, the owner declares that this segment and all after it are false: a node recorded them, and
    no archive has them. Their entries are archived again. A segment that the archive has can't be void, nor
    one whose entries may be deleted.

    \b
    Example:
      vox-mesh oplog archive --list
    """
    settings = start_quickly("oplog archive")
    age_s = settings.archive_after if older_than is None else older_than

    async def run(mesh: Mesh) -> list[Record]:
        if only_list:
            return [_segment(each) for each in await _segments(mesh)]
        begun = await CheckpointFile(settings).load()
        parts = (mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys)
        to_archive = LogArchive(*parts, lambda: mesh.oplog.verify(since=begun), archive_target(settings))
        if void is not None:
            return [_segment(await void_segment(mesh, to_archive.target, void, time.monotonic))]
        missing = await to_archive.false_segments.first_missing()
        await to_archive.false_segments.checked()
        if missing is not None and delete_older_than is None:  # a deletion raises it
            click.echo(f"vox-mesh: {missing_error(missing).line}", err=True)
        done = await to_archive.run_once(round(age_s * 1_000))
        if delete_older_than is not None:
            keep_ms = round(delete_older_than * 1_000)
            await delete_archived(mesh, to_archive.target, keep_ms, time.monotonic)
        return [_segment(each) for each in await _segments(mesh) if each.segment in done]

    show_several(asyncio.run(run_on_mesh(settings, run)), as_json=as_json)


async def _segments(mesh: Mesh) -> Sequence[RecordedSegment]:
    return (await SegmentOps(mesh.store, mesh.trusted_keys).read()).recorded


def _segment(recorded: RecordedSegment) -> Record:
    segment, entry = recorded.segment, recorded.entry
    return {
        "number": segment.number,
        "entries": segment.entries,
        "last_id": segment.last_id,
        "bytes": segment.bytes,
        "node_id": entry.node_id,
        "op_id": entry.op_id,
        "file": segment.file_name,
        "sha256": segment.sha256,
    }


@oplog.command()
@json_option
def anchor(as_json: bool) -> None:
    """Record the ends of all other chains.

    A chain that is cut off before its anchor is detected. Every live node anchors once a minute.

    \b
    Example:
      vox-mesh oplog anchor
    """
    show_one(run_command("oplog anchor", lambda mesh: _anchor(mesh, as_json)), as_json=as_json)


async def _anchor(mesh: Mesh, as_json: bool) -> Record:
    outcome = await mesh.oplog.anchor()
    (record,) = await _records(mesh, [await mesh.oplog.find(outcome.key)], as_json=as_json)
    return record
