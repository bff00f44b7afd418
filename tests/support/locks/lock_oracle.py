"""What the rules say of locks, in memory: a list of holds and a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vox_mesh.model.locks.patterns import overlap


@dataclass(eq=False)
class Claim:
    """A client that holds keys, or wants to; `tokens` are the ones that it was given, in order."""

    keys: tuple[str, ...]
    is_shared: bool
    agent: str
    tokens: list[int] = field(default_factory=list)

    def excludes(self, other: Claim) -> bool:
        """Whether the two can't be held together."""
        if self.is_shared and other.is_shared:
            return False
        return any(overlap(mine, theirs) for mine in self.keys for theirs in other.keys)


class Oracle:
    """First come, first served; all keys or none; no one next to a lock that excludes it."""

    def __init__(self) -> None:
        self.holds: list[Claim] = []
        self.queue: list[Claim] = []

    def may_have(self, claim: Claim) -> bool:
        """Whether nothing that is held, or was asked for earlier, excludes it."""
        earlier = self.queue[: self.queue.index(claim)] if claim in self.queue else self.queue
        return not any(other.excludes(claim) for other in (*self.holds, *earlier))

    def ask(self, claim: Claim, *, waits: bool) -> bool:
        """Whether the claim is granted now; if not, it may wait."""
        if self.may_have(claim):
            self.holds.append(claim)
            return True
        if waits:
            self.queue.append(claim)
        return False

    def end(self, claim: Claim) -> None:
        """It is let go of, expired, broken or given up."""
        for claims in (self.holds, self.queue):
            if claim in claims:
                claims.remove(claim)

    def turn(self, claim: Claim) -> bool:
        """Upgrade or downgrade it, before all who wait; whether that can be."""
        turned = Claim(claim.keys, not claim.is_shared, claim.agent)
        if any(other is not claim and other.excludes(turned) for other in self.holds):
            return False
        claim.is_shared = turned.is_shared
        return True

    def served(self) -> Iterator[Claim]:
        """Those of the queue whose turn has come by now."""
        for claim in list(self.queue):
            if self.may_have(claim):
                self.queue.remove(claim)
                self.holds.append(claim)
                yield claim

    def holders(self) -> list[tuple[str, str, bool]]:
        """What everybody sees: key, agent and mode of each hold, sorted."""
        return sorted((key, claim.agent, claim.is_shared) for claim in self.holds for key in claim.keys)

    def waiters(self) -> list[tuple[str, str, bool]]:
        """The same of those who wait."""
        return sorted((key, claim.agent, claim.is_shared) for claim in self.queue for key in claim.keys)
