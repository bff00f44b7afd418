"""Addresses in other scopes: `AGENT@SCOPE`, or `role:NAME@SCOPE`."""

from __future__ import annotations

from typing import Final, NamedTuple

AT: Final = "@"
"""Between the address of an inbox and its scope."""


class ScopeAddress(NamedTuple):
    """An inbox, and the scope that has it."""

    inbox: str
    scope: str

    @classmethod
    def parse(cls, address: str) -> ScopeAddress | None:
        """Return the inbox and the scope that an address names; `None` if it names no scope."""
        inbox, at, scope = address.rpartition(AT)
        return cls(inbox, scope) if at and inbox and scope else None

    def __str__(self) -> str:
        return f"{self.inbox}{AT}{self.scope}"
