"""Entries: number, link, hash and sign the ops of a request as the next entries of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.oplog import chain
from vox_mesh.model.oplog.chain import NO_HASH, SEAL, Sealing
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.store.script import Op, Script, WriterId

_NO_OP: Final = Op("", "")


class EntryValues(NamedTuple):
    """The values of an entry, in the order in which the statements expect them."""

    seq: int
    op_id: str
    kind: str
    hlc: str
    deps: str
    payload: str
    prev: str
    hash: str
    signature: str | None
    remark: str | None
    agent: str | None
    grant: str | None
    refusals: Sequence[str | None]
    columns: Sequence[str] | None


class End(NamedTuple):
    """The last entry of a chain; before the first, number 0 and a hash of zeros."""

    seq: int = 0
    hash: str = NO_HASH


class EntryBuilder:
    """Build the entries of one mesh."""

    def __init__(self, writer_id: WriterId, clock: MeshClock) -> None:
        self._scope_id, self._repository_id = writer_id[:2]
        self._clock = clock
        self.default_agent: str | None = None
        """Who acts unless an op says otherwise; `None`: entries of version 1 are written."""

    def build(
        self, author: Identity, end: End, scripts: Sequence[Script], sealing: Sealing
    ) -> list[EntryValues]:
        """Return the entries of the ops of these scripts, which follow the end of the author's chain."""
        repository = self._repository_id
        now_ms = self._clock.now_ms
        default = self.default_agent
        entries: list[EntryValues] = []
        seq, prev = end
        for script in _in_order(scripts):
            kind, payload, dependencies, signed, remark, agent, grant = script.op or _NO_OP
            if default is None:
                agent = grant = None
            elif agent is None:
                agent = default
            seq += 1
            if kind == SEAL:
                payload = sealing.payload(seq)
            hlc = str(self._clock.tick(now_ms))
            deps = orjson.dumps(dependencies).decode() if dependencies else "[]"
            own = chain.hash_of(
                author.chain, seq, script.key, kind, hlc, deps, payload, repository, prev, agent, grant
            )
            entries.append(
                EntryValues(
                    seq=seq,
                    op_id=script.key,
                    kind=kind,
                    hlc=hlc,
                    deps=deps,
                    payload=payload,
                    prev=prev,
                    hash=own,
                    signature=self._sign(author, own) if signed else None,
                    remark=remark,
                    agent=agent,
                    grant=grant,
                    refusals=_reasons(script),
                    columns=script.columns or None,
                )
            )
            prev = own
        last = entries[-1]
        if last.signature is None:  # through the chain it covers all entries before it
            entries[-1] = EntryValues(*last[:8], self._sign(author, prev), *last[9:])
        return entries

    def _sign(self, author: Identity, entry_hash: str) -> str:
        return author.key.sign(chain.signed_text(entry_hash, self._scope_id))


def _in_order(scripts: Sequence[Script]) -> Iterable[Script]:
    """Return the scripts whose ops are bound: each once, a seal before all without a verdict."""
    if len(scripts) == 1:
        return scripts
    once = {script.key: script for script in scripts}
    seals = [script for script in scripts if script.op and script.op.kind == SEAL]
    if not seals:
        return once.values()
    return seals[:1] + [script for script in once.values() if script not in seals]


def _reasons(script: Script) -> Sequence[str | None]:
    """Return the refusal reason of each statement, by position."""
    refusals = script.refusals
    return [refusals.get(index) for index in range(max(refusals) + 1)] if refusals else ()


def entries_json(entries: Sequence[EntryValues]) -> str:
    """Return entries as a JSON array, for the statements that append several."""
    return orjson.dumps([tuple(entry) for entry in entries]).decode()
