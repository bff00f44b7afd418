"""The results of many seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from proof.simulate.trial import Trial

_HOUR_S: Final = 3_600
_FEW: Final = 10


class StuckSeed(NamedTuple):
    """A seed that did not end, and why it was stopped."""

    seed: int
    why: str

    def __str__(self) -> str:
        return f"seed {self.seed} does not end: {self.why}"


class Tally:
    """The results so far. `command` returns the command that runs a seed again."""

    def __init__(self, command: Callable[[int], str]) -> None:
        self._command = command
        self._looks: Counter[str] = Counter()
        self._seeds = self._operations = self._faults = 0
        self._seconds = 0.0
        self.broken: Final[list[Trial]] = []
        self.stuck: Final[list[StuckSeed]] = []

    def add(self, trial: Trial | StuckSeed) -> None:
        """Add a result."""
        self._seeds += 1
        if isinstance(trial, StuckSeed):
            self.stuck.append(trial)
            return
        self._operations += trial.operations
        self._faults += trial.faults
        self._seconds += trial.seconds
        for verdict in trial.verdicts:
            self._looks[verdict.name] += verdict.looks
        if not trial.holds:
            self.broken.append(trial)

    def __str__(self) -> str:
        return (
            f"{self._seeds} seeds, {self._seconds / _HOUR_S:.1f} simulated hours, "
            f"{self._operations} operations, {self._faults} faults: {len(self.broken)} broken"
            + (f" ({', '.join(str(trial.seed) for trial in self.broken[:_FEW])})" if self.broken else "")
            + (f", {len(self.stuck)} that do not end" if self.stuck else "")
        )

    def report(self) -> str:
        """Return the results as text."""
        lines = [str(self), *(f"  {name:<28}{looks:>10} looks" for name, looks in self._looks.items())]
        for trial in self.broken:
            lines += ["", f"seed {trial.seed} ({', '.join(trial.workloads)}), history {trial.digest}:"]
            lines += [*map(str, trial.broken), f"again: {self._command(trial.seed)}"]
        for each in self.stuck:
            lines += ["", str(each), f"again: {self._command(each.seed)}"]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return the results as a JSON document."""
        return {
            "seeds": self._seeds,
            "simulated_s": round(self._seconds, 3),
            "deeds": self._operations,
            "faults": self._faults,
            "looks": dict(self._looks),
            "broken": sorted({verdict.name for trial in self.broken for verdict in trial.broken}),
            "trials": [self._document(trial) for trial in self.broken],
            "stuck": [each.seed for each in self.stuck],
        }

    def _document(self, trial: Trial) -> dict[str, Any]:
        return {
            "seed": trial.seed,
            "workloads": trial.workloads,
            "digest": trial.digest,
            "faults": {verdict.name: verdict.faults for verdict in trial.broken},
            "again": self._command(trial.seed),
        }
