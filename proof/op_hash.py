"""The hash of an op, implemented again from its specification: a check must not rely on the product."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from vox_mesh.model.oplog.chain import LogEntry


def op_hash(entry: LogEntry) -> str:
    """Return the hash of an entry as the format defines it, with the standard library's JSON encoder."""
    acting = {} if entry.agent is None else {"agent": entry.agent, "grant": entry.grant}
    whole = {
        **acting,
        "v": 2 if acting else 1,
        "node": entry.node_id,
        "seq": entry.seq,
        "op_id": entry.op_id,
        "kind": entry.kind,
        "hlc": entry.hlc,
        "deps": _value(entry.causal_deps),
        "payload": _value(entry.payload),
        "repository": entry.repository_id,
        "prev": entry.prev,
    }
    return hashlib.sha3_256(rfc8785.dumps(whole)).hexdigest()


def _value(text: str) -> Any:
    return json.loads(text, parse_int=_number)


def _number(digits: str) -> int | float:
    """Return a number as JSON defines it: a double."""
    return int(digits) if abs(int(digits)) < 2**53 else float(digits)
