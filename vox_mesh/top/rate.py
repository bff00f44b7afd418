"""How fast the log grows, from where it ended at each look."""

from __future__ import annotations

from collections import deque
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
_WINDOW_MS: Final = 5_000
_SECONDS: Final = 60


class Rate:
    """Ops per second: lately, and second by second."""

    def __init__(self) -> None:
        self._looks = deque[tuple[int, int]]()
        self._counts = deque[int](maxlen=_SECONDS)
        self._second: tuple[int, int] | None = None

    def add(self, now_ms: int, last_id: int) -> None:
        """At this time, by the database's clock, the log ended there."""
        self._looks.append((now_ms, last_id))
        while len(self._looks) > 2 and now_ms - self._looks[1][0] >= _WINDOW_MS:
            self._looks.popleft()
        second = now_ms // 1_000
        if self._second is None:
            self._second = second, last_id
        elif second > self._second[0]:
            passed, grown = second - self._second[0], max(0, last_id - self._second[1])
            # Looks may be far apart: what came meanwhile came evenly, as far as we know.
            share, rest = divmod(grown, passed)
            for n in range(min(passed, _SECONDS)):
                self._counts.append(share + (n < rest))
            self._second = second, last_id

    @property
    def per_second(self) -> float:
        """In the last seconds."""
        if len(self._looks) < 2:
            return 0.0
        (began_ms, first), (now_ms, last) = self._looks[0], self._looks[-1]
        return max(0, last - first) * 1_000 / max(1, now_ms - began_ms)

    def bars(self, width: int) -> str:
        """A bar for each of the last seconds, the highest as high as can be."""
        counts = list(self._counts)[-width:]
        top = max([1, *counts])
        return "".join(BARS[(count * (len(BARS) - 1) + top - 1) // top] for count in counts)
