"""What processes have written and read of the counters, and whether it can have been so."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.running.processes import Report


@dataclass
class Rising:
    """A value that only ever rises, as it was known at any moment."""

    moments: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def add(self, moment: float, value: int) -> None:
        """The value was at least this, at that moment; reported in the order of the moments."""
        self.moments.append(moment)
        self.values.append(max(value, self.values[-1] if self.values else 0))

    def before(self, moment: float) -> int:
        """The value as it was known before that moment."""
        at = bisect_left(self.moments, moment)
        return self.values[at - 1] if at else 0


class History:
    """The reports of all processes. Their clocks are one: the machine's."""

    def __init__(self, reports: dict[str, list[Report]]) -> None:
        self._by_actor = {
            actor: sorted((each for each in answer if "event" in each), key=lambda each: each["at"])
            for actor, answer in reports.items()
        }
        self._sent: dict[str, Rising] = defaultdict(Rising)
        self._written: dict[str, Rising] = defaultdict(Rising)
        everything = [each for answer in self._by_actor.values() for each in answer]
        for each in sorted(everything, key=lambda each: each["at"]):
            if each["event"] == "sent":
                sent = self._sent[each["counter"]]
                sent.add(each["at"], sent.before(float("inf")) + 1)
            elif each["event"] == "written":
                self._written[each["counter"]].add(each["at"], each["n"])

    def reads(self, actor: str) -> list[Report]:
        """What a process read."""
        return [each for each in self._by_actor[actor] if each["event"] == "read"]

    def assert_each_raise_counted_once(self) -> None:
        """No two processes were given the same value of a counter."""
        written = [
            (each["counter"], each["n"])
            for answer in self._by_actor.values()
            for each in answer
            if each["event"] == "written"
        ]
        assert len(set(written)) == len(written)

    def wrong_reads(self, actor: str) -> Iterable[str]:
        """The reads that break a promise, and which."""
        own: dict[str, Rising] = defaultdict(Rising)
        seen: dict[str, Rising] = defaultdict(Rising)
        for each in self._by_actor[actor]:
            if each["event"] == "written":
                own[each["counter"]].add(each["at"], each["n"])
            elif each["event"] == "read":
                asked_at = each["asked_at"]
                for counter in self._sent:
                    n = each["values"].get(counter, 0)
                    floors = {
                        "older than what it had written": own[counter].before(asked_at),
                        "older than what it had read": seen[counter].before(asked_at),
                        "older than it says": self._written[counter].before(asked_at - each["age_s"]),
                    }
                    for fault, floor in floors.items():
                        if n < floor:
                            yield f"{actor} read {counter} = {n} < {floor}, {fault}: {each}"
                    if n > (most := self._sent[counter].before(each["at"])):
                        yield f"{actor} read {counter} = {n}, and only {most} were sent: {each}"
                    seen[counter].add(each["at"], n)
