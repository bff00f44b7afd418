"""Findings: what an audit found about the entries of chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vox_mesh.model.oplog.verification import ChainReport


class ChainFinding(NamedTuple):
    """An entry of a chain, and what is wrong with it."""

    chain: str
    seq: int
    op_id: str
    what: str


def with_findings(reports: Sequence[ChainReport], findings: Sequence[ChainFinding]) -> list[ChainReport]:
    """Return the reports on chains, each with the first finding on it unless it has another problem."""
    first: dict[str, ChainFinding] = {}
    for each in findings:
        if each.chain not in first or each.seq < first[each.chain].seq:
            first[each.chain] = each
    return [
        report._replace(problem=found.what, seq=found.seq, op_id=found.op_id)
        if report.problem is None and (found := first.get(report.node_id)) is not None
        else report
        for report in reports
    ]
