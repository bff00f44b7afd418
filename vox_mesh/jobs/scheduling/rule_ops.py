"""Rule ops: the rules that the log has. A row of `job_rules` proves nothing."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.jobs.scheduling.definition_ops import DefinitionOps
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.scheduling.rule import RuleDefinition
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import ADD_RULE, REMOVE_RULE
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op
from vox_mesh.store.store import Store

_SQL: Final = named("rules")


def adding(name: str, definition: RuleDefinition) -> Op:
    """Return the op that adds a rule."""
    return Op(ADD_RULE, canonical({"rules": {name: [*definition]}}), signed=True)


def removing(name: str) -> Op:
    """Return the op that removes a rule."""
    return Op(REMOVE_RULE, canonical({"name": name}), signed=True)


class RuleOps(DefinitionOps[RuleDefinition]):
    """The rules in force; `since` has the positions of their ops in the log."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        super().__init__(store, trusted_keys, _SQL, REMOVE_RULE)

    def _added_by(self, entry: LogEntry, payload: Any) -> dict[str, RuleDefinition]:
        return {name: RuleDefinition._make(each) for name, each in payload["rules"].items()}

    def _time_of(self, entry: LogEntry) -> int:
        return entry.id
