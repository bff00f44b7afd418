"""Errors about documents: what is wrong with one that was given."""

from __future__ import annotations

from collections.abc import Sequence

from vox_mesh.errors.base import BadValue


class NotJson(BadValue):
    """A text is not JSON."""

    code = "not_json"


class BadDocument(BadValue):
    """A document is invalid. `faults` lists all that is wrong with it, one per line."""

    code = "bad_document"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class BadManifest(BadDocument):
    """A job's manifest can't be used."""

    code = "bad_manifest"


class BadWorkflow(BadDocument):
    """A workflow can't be used."""

    code = "bad_workflow"


class BadPolicy(BadDocument):
    """A tempo policy can't be used."""

    code = "bad_policy"


class BadScore(BadDocument):
    """A task's score can't be used."""

    code = "bad_score"


class BadAddress(BadValue):
    """An address can't be read. `position` is the offset of what is wrong, or the text's length: its end."""

    code = "bad_address"

    def __init__(self, message: str, *, position: int, hint: str) -> None:
        super().__init__(f"{message}, at offset {position}", hint=hint)
        self.position = position


class BadBudget(BadDocument):
    """A budget, or a file of rates, can't be used."""

    code = "bad_budget"
