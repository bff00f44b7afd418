"""Export: the log as a file of JSON lines that can be verified without the database and its settings.

The first line is a header with all keys, the last line states the number of entries in between. Every line
has exactly one valid encoding, so that nothing can be hidden in its spelling.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from vox_mesh.errors import BadSettings, BadValue, ExportRefused
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.audit import APPROVAL_OPS, GRANT_OPS, GrantAudit
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.jobs.records import JOB_OPS, SCHEDULE
from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding, with_findings
from vox_mesh.model.oplog.log_check import LogCheck
from vox_mesh.model.oplog.succession import Succession, Successions
from vox_mesh.model.oplog.verification import (
    INITIALISE,
    TRANSFER,
    WITNESSES,
    ChainReport,
    ChainWitness,
    Key,
    RecordedHead,
)
from vox_mesh.model.rhythm.tempo import BeatStamp
from vox_mesh.oplog.archive.entry_lines import json_line, read_entry, record_of
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.store.files import publish
from vox_mesh.store.script import new_key

_FORMAT: Final = "vox-mesh oplog"
_VERSION: Final = 1
_END_PREFIX: Final = b'{"entries":'
_OF_OWNERS: Final = (INITIALISE, TRANSFER)
_MAX_LINE_BYTES: Final = 64 * 2**20
_BLOCK_BYTES: Final = 2**16


class ExportHeader(NamedTuple):
    """The mesh that the log belongs to, and the keys that its signatures are checked against."""

    scope_id: str
    repository_id: str
    owner: Owner | None
    keys: list[Key]
    stamp: BeatStamp | None = None
    """The bar and beat in which the export was begun; `None` in a mesh without an announced tempo."""


class ExportResult(NamedTuple):
    """A finished export."""

    path: Path
    entries: int
    chains: int
    bytes: int


class ExportVerification(NamedTuple):
    """The result of verifying an export."""

    header: ExportHeader
    chains: list[ChainReport]
    ends: list[RecordedHead]
    """The last entry of each chain."""

    owner_keys: tuple[str, ...]
    """The keys of all owners, one after another."""


# --- writing -------------------------------------------------------------------------------------


class Export:
    """The log as of the start of the export, as lines. It counts what was written so far."""

    def __init__(self, oplog: OpLog, header: ExportHeader, last_id: int) -> None:
        self._oplog = oplog
        self._header = header
        self._last_id = last_id
        self.entries = 0
        self.chains: set[str] = set()

    @classmethod
    async def begin(
        cls, oplog: OpLog, scope_id: str, repository_id: str, stamp: BeatStamp | None = None
    ) -> Export:
        """Begin an export of the log as of now, in this bar and beat if the mesh has a tempo."""
        owner, keys, end = await oplog.moment()
        return cls(oplog, ExportHeader(scope_id, repository_id, owner, keys, stamp), end.entry_id)

    async def parts(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines, a page of entries at a time. Without its last line an export is incomplete."""
        yield [_header_line(self._header)]
        async for page in self._oplog.entries(up_to=self._last_id):
            self.entries += len(page)
            self.chains.update(entry.node_id for entry in page)
            yield [json_line(record_of(entry)) for entry in page]
        yield [_end_line(self.entries)]


async def export_log(
    oplog: OpLog, scope_id: str, repository_id: str, path: Path, stamp: BeatStamp | None = None
) -> ExportResult:
    """Write the log to a new file, which gets its name when it is complete."""
    export = await Export.begin(oplog, scope_id, repository_id, stamp)
    draft = path.with_name(f".{path.name}.{new_key()}")
    try:
        _refuse_if_taken(path)
        file = await asyncio.to_thread(_create, draft)
        try:
            with file:
                async for lines in export.parts():
                    await asyncio.to_thread(file.writelines, lines)
            _refuse_if_taken(path)  # by another process, meanwhile
            size = await asyncio.to_thread(publish, draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ExportRefused(
            f"{path} can't be written: {error.strerror}", hint="choose another folder"
        ) from None
    return ExportResult(path, export.entries, len(export.chains), size)


def _refuse_if_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise ExportRefused(f"{path} exists already", hint="choose a name that is free")


def _create(draft: Path) -> BinaryIO:
    return os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _header_line(header: ExportHeader) -> bytes:
    scope_id, repository_id, owner, keys, stamp = header
    return json_line(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "scope_id": scope_id,
            "repository_id": repository_id,
            "owner": None if owner is None else owner._asdict(),
            "keys": [key._asdict() for key in keys],
            **({} if stamp is None else stamp._asdict()),
        }
    )


def _end_line(entries: int) -> bytes:
    return json_line({"entries": entries})


# --- verifying -----------------------------------------------------------------------------------


def verify_export(
    path: Path,
    node_id: str | None = None,
    *,
    owner_key: str | None = None,
    heads: Sequence[RecordedHead] = (),
) -> ExportVerification:
    """Recompute all chains of an export, or one. Return the header and a report on each chain.

    The owner must have this key, and the chains these heads, which were recorded elsewhere.
    """
    ends: dict[str, LogEntry] = {}
    with _open(path) as file:
        header = _header(path, file.readline(_MAX_LINE_BYTES))
        recorded = "" if header.owner is None else header.owner.public_key
        owners = _owners(_entries_from_start(_OF_OWNERS, path, file, header), header, owner_key)
        witness = ChainWitness(
            owners or owner_key or recorded or None, header.keys, header.scope_id, recorded
        )
        for head in heads:
            witness.hear_head(head)
        for entry in _entries_from_start(WITNESSES, path, file, header):
            witness.hear(entry)
        check = LogCheck(witness)
        for entry in _entries_from_start(None, path, file, header):
            ends[entry.node_id] = entry
            if node_id in (None, entry.node_id):
                check.check(entry)
        findings = _grant_findings(path, file, header, owners, node_id)
    reports = with_findings(check.finish(node_id), findings)
    keys = (recorded,) if owners is None else owners.keys
    if owner_key is not None and owner_key not in keys:
        problem = f"the owner of the mesh is not {owner_key}, but {recorded or 'none'}"
        reports.append(ChainReport("", 0, 0, 0, problem))
    place = f"the export {path.name}"
    last = [RecordedHead(each.node_id, each.seq, each.hash, place) for each in ends.values()]
    return ExportVerification(header, reports, last, keys)


def _grant_findings(
    path: Path, file: BinaryIO, header: ExportHeader, owners: Succession | None, node_id: str | None
) -> list[ChainFinding]:
    """Replay the grants, and return the entries of one chain, or of all, that were done without one."""
    if owners is None:
        return []
    history = GrantHistory(owners.signer, header.scope_id, owners.owner.node_id)
    for entry in sorted(_entries_from_start(GRANT_OPS, path, file, header), key=_place):
        history.hear(entry)
    if not history.is_in_use:
        return []
    approvals = ApprovalHistory(history, owners.signer)
    for entry in sorted(_entries_from_start(APPROVAL_OPS, path, file, header), key=_place):
        approvals.hear(entry)
    audit = GrantAudit(history, approvals)
    for entry in _entries_from_start(None, path, file, header):
        if node_id in (None, entry.node_id):
            audit.check(entry)
    if audit.has_doubts:
        for entry in _entries_from_start((SCHEDULE,), path, file, header):
            audit.hear_schedule(entry)
    if audit.has_budgets:
        for entry in _entries_from_start(JOB_OPS, path, file, header):
            audit.hear_job(entry)
    return audit.findings


def _entries_from_start(
    kinds: Collection[str] | None, path: Path, file: BinaryIO, header: ExportHeader
) -> Iterator[LogEntry]:
    """Yield the entries of these kinds, or of all, from the first line after the header on.

    Only a pass over all of them finds what else is wrong with the file.
    """
    file.seek(0)
    file.readline(_MAX_LINE_BYTES)
    if kinds is None:
        yield from (_entry(path, number, line, header) for number, line in _lines(path, file))
        return
    for number, line in _lines_of(kinds, file):
        entry = _entry(path, number, line, header)
        if entry.kind in kinds:
            yield entry


def _owners(entries: Iterator[LogEntry], header: ExportHeader, owner_key: str | None) -> Succession | None:
    """Return the owners as the entries have them, from an owner with a known key or the first one on."""
    successions, found = Successions(header.scope_id), list(entries)
    for entry in sorted(found, key=_place):
        successions.hear_first(entry)
    for entry in sorted(found, key=lambda entry: str(entry.hlc)):
        successions.hear(entry)  # nothing but a step is one
    return successions.resolve(owner_key)


def _place(entry: LogEntry) -> int:
    place: object = entry.id  # a hostile row holds anything
    return place if isinstance(place, int) else 0


def _lines_of(kinds: Collection[str], file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines that may be entries of these kinds: few, so that lines are not split first."""
    mark = re.compile(b'"kind":"(?:%b)"' % "|".join(map(re.escape, kinds)).encode())
    number = 2
    while block := file.read(_BLOCK_BYTES):
        block += file.readline(_MAX_LINE_BYTES)
        counted = end = 0
        while found := mark.search(block, end):
            start = block.rfind(b"\n", end, found.start()) + 1 or end
            end = block.find(b"\n", found.end()) + 1 or len(block)
            number += block.count(b"\n", counted, start)
            counted = start
            yield number, block[start:end]
        number += block.count(b"\n", counted)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():
            raise _no_export_error(path, "it is no file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _no_export_error(path, error.strerror or "it can't be read") from None


def _no_export_error(path: Path, reason: str) -> BadSettings:
    return BadSettings(
        f"{path} is not an export of a log: {reason}", hint="pass a file that `vox-mesh oplog export` wrote"
    )


def _damaged_error(path: Path, number: int, what: str) -> ExportRefused:
    return ExportRefused(f"{path}, line {number}: {what}", hint="export the log again: the file is damaged")


def _header(path: Path, line: bytes) -> ExportHeader:
    try:
        record = parse(line)
    except BadValue:
        raise _no_export_error(path, "its first line is not JSON") from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise _no_export_error(path, "its first line does not say so")
    if record.get("version") != _VERSION:
        raise _no_export_error(path, f"this code knows version {_VERSION} of the format")
    try:
        owner = record["owner"]
        header = ExportHeader(
            record["scope_id"],
            record["repository_id"],
            None if owner is None else Owner(**owner),
            [Key(**key) for key in record["keys"]],
            BeatStamp(record["window"], record["beat_index"]) if "window" in record else None,
        )
        is_ours = _header_line(header) == line and _is_well_typed(header)
    except (KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise _damaged_error(path, 1, "the header is not written as an export writes it")
    return header


def _is_well_typed(header: ExportHeader) -> bool:
    texts = [header.scope_id, header.repository_id, *(header.owner or ())]
    for node_id, from_seq, public_key in header.keys:
        if type(from_seq) is not int:
            return False
        texts += [node_id, public_key]
    has_stamp = header.stamp is None or header.stamp.is_valid
    return has_stamp and all(isinstance(text, str) for text in texts)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines with entries, up to the last line, whose count must match."""
    number = 1
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        if line.startswith(_END_PREFIX):
            if line != _end_line(number - 2):
                raise _damaged_error(
                    path, number, f"{number - 2} entries lie before it, and it says otherwise"
                )
            if file.read(1):
                raise _damaged_error(path, number + 1, "it follows the last line")
            return
        yield number, line
    raise _damaged_error(path, number, "the file ends here, without its last line: it was cut off")


def _entry(path: Path, number: int, line: bytes, header: ExportHeader) -> LogEntry:
    try:
        entry = read_entry(line)
    except BadValue as error:
        raise _damaged_error(path, number, str(error)) from None
    if entry.repository_id != header.repository_id:
        raise _damaged_error(path, number, f"it belongs to another repository ({entry.repository_id!r})")
    return entry
