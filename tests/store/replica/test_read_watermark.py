"""The read watermark: a copy that lacks what this process has seen is refused, any other is good.

The model is a server with several lives. Each life has a log of its own, whose frames count from 0 and whose
first ones hold all that was committed before. Connections belong to the life in which they were opened.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.nodes.clocks import Clock
from tests.support.running.examples import many
from vox_mesh.store.replica.read_watermark import ReadWatermark

_STEPS = 120


@dataclass
class ServerRun:
    """A life of the server: after how many frames there were how many commits."""

    log_id: str
    base: int
    frames: list[int] = field(default_factory=list)
    """Of each frame, how many commits there are once it is applied."""

    def commits_at(self, next_frame: int) -> int:
        """What a copy that has come so far holds."""
        return self.frames[next_frame - 1] if next_frame else -1


@dataclass
class Line:
    """A connection, and the answers on their way: the frame named, the commits seen, whether of a query."""

    number: int
    life: ServerRun
    answers: deque[tuple[int | None, int, bool]] = field(default_factory=deque)


class World:
    """A server, one process with its floor, and a copy that follows."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = Clock()
        self.floor = ReadWatermark(self.clock)
        self.commits = 0
        self.seen = 0
        self.lines: list[Line] = []
        self.life = ServerRun("log 0", 0)
        self.lives = 1
        self.asked: tuple[float, ServerRun | None, int] | None = None
        self.copy = self.life
        self.next_frame = 0
        self.as_of = -1.0
        self.is_readable = False
        self.promises: deque[tuple[float, int]] = deque()
        self.write()

    # --- the server ---

    def write(self) -> None:
        """A transaction, by whomever."""
        self.commits += 1
        frames = self.random.randint(1, 3)
        self.life.frames += [self.commits - 1] * (frames - 1) + [self.commits]

    def restart(self) -> None:
        """A new life, whose log begins with everything."""
        self.life = ServerRun(f"log {self.lives}", self.commits)
        self.life.frames = [-1] * self.random.randint(0, 2) + [self.commits]
        self.lives += 1

    # --- this process ---

    def connect(self) -> None:
        """Open a connection."""
        self.lines.append(Line(len(self.lines) + 1, self.life))

    def answer(self) -> None:
        """The server answers over a connection that is still good.

        A query may come between a commit and the count of its frames.
        """
        line = self.random.choice(self.lines)
        if line.life is not self.life:
            return
        chance = self.random.random()
        is_query = chance > 0.4
        if chance < 0.3:
            self.write()
        frame = None if chance > 0.95 else len(self.life.frames) - 1
        seen = self.commits
        if is_query and self.random.random() < 0.2:
            self.write()
            seen = self.commits
        line.answers.append((frame, seen, is_query))

    def answer_unkept(self) -> None:
        """An answer to a request of its own connection."""
        self.seen = max(self.seen, self.commits)
        self.floor.note(len(self.life.frames) - 1, 0, True)

    def receive(self) -> None:
        """An answer comes in, be it after the server's death."""
        line = self.random.choice(self.lines)
        if line.answers:
            frame, commits, is_query = line.answers.popleft()
            self.seen = max(self.seen, commits)
            self.floor.note(frame, line.number, is_query)

    # --- its copy ---

    def ask(self) -> None:
        """Say hello."""
        self.asked = self.clock.now, None, 0

    def serve(self) -> None:
        """The server takes note of the hello."""
        if self.asked is not None and self.asked[1] is None:
            self.asked = self.asked[0], self.life, len(self.life.frames)

    def hear(self) -> None:
        """The hello's answer comes in."""
        if self.asked is None or self.asked[1] is None:
            return
        (asked_at, life, end), self.asked = self.asked, None
        assert life is not None
        self.floor.place(life.log_id, asked_at)
        if life is not self.copy:
            self.copy, self.next_frame, self.is_readable = life, 0, False
            self.promises.clear()
        self.promises.append((asked_at, end))
        self.redeem()

    def apply(self) -> None:
        """Frames come in; a copy takes in whole transactions."""
        frames = self.copy.frames
        frame = min(len(frames), self.next_frame + self.random.randint(1, 6))
        while frame and frames[frame - 1] == (frames[frame - 2] if frame > 1 else -1):  # not an end
            frame -= 1
        self.next_frame = frame
        self.redeem()

    def redeem(self) -> None:
        """See which hellos the copy has caught up with."""
        while self.promises and self.promises[0][1] <= self.next_frame:
            self.as_of, _ = self.promises.popleft()
            self.is_readable = True

    # --- what must hold ---

    @property
    def is_met(self) -> bool:
        """Whether the copy may answer."""
        return self.is_readable and self.floor.is_met_by(self.copy.log_id, self.next_frame, self.as_of)

    def step(self) -> None:
        """Something happens, and maybe time passes."""
        self.clock.now += self.random.choice((0.0, 0.0, 1.0))
        happening = self.random.choices(
            (
                *(self.write, self.restart, self.connect, self.answer, self.answer_unkept, self.receive),
                *(self.ask, self.serve, self.hear, self.apply),
            ),
            (6, 1, 2, 8, 0.3, 8, 4, 4, 4, 8),
        )[0]
        happening()

    def check(self) -> None:
        """Nothing that was reported is missing."""
        if self.is_met:
            assert self.copy.commits_at(self.next_frame) >= self.seen
        elif (
            self.is_readable
            and self.next_frame == len(self.copy.frames)
            and self.copy is self.life
            and not any(line.life is not self.life for line in self.lines)
        ):
            # It holds everything there is: only a hello can tell that, or has done so.
            assert self.floor.needs_hello(self.copy.log_id, self.as_of)

    def catch_up(self) -> None:
        """A hello from start to end, after all that happened, and all that it named."""
        self.clock.now += 1
        self.ask()
        self.serve()
        self.hear()
        self.next_frame = len(self.copy.frames)
        self.redeem()


@many
@given(st.integers(0, 2**32))
@example(251)  # a query between a commit and the count of its frames
@example(35_129)  # answers of a dead server between two of the living one
def test_what_was_reported_is_never_missing_and_a_hello_later_all_is_well(seed: int) -> None:
    world = World(Random(seed))
    world.connect()
    for _ in range(_STEPS):
        world.step()
        world.check()
    world.catch_up()
    assert world.is_met
    assert world.copy.commits_at(world.next_frame) >= world.seen


def test_the_walks_meet_the_floor_and_miss_it() -> None:
    """Otherwise the property above would say little."""
    met = missed = 0
    for seed in range(30):
        world = World(Random(seed))
        world.connect()
        for _ in range(_STEPS):
            world.step()
            if world.is_readable:
                met += world.is_met
                missed += not world.is_met
    assert met > 100
    assert missed > 100


# --- case by case ---------------------------------------------------------------------------------


def test_nothing_seen_is_nothing_to_miss() -> None:
    assert ReadWatermark(Clock()).is_met_by("any", 0, -1.0)


def test_an_answer_of_an_unknown_log_is_met_by_what_was_asked_later_only() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(5, 1, False)
    for as_of in (9.0, 10.0):  # of two things at the same moment no one knows which came first
        assert not floor.is_met_by("a", 1_000, as_of)
        assert floor.needs_hello("a", as_of)
    assert floor.is_met_by("a", 0, 10.1)


def test_a_connection_that_a_hello_has_placed_needs_no_other() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(5, 1, False)
    floor.place("a", 11.0)
    clock.now = 20.0
    floor.note(8, 1, False)
    assert not floor.is_met_by("a", 8, 11.0)
    assert not floor.needs_hello("a", 11.0)
    assert floor.is_met_by("a", 9, 11.0)
    assert not floor.is_met_by("b", 9, 11.0)
    assert floor.needs_hello("b", 11.0)


def test_a_query_may_show_one_commit_more_than_it_says() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(5, 1, False)
    floor.place("a", 11.0)
    clock.now = 20.0
    floor.note(8, 1, True)
    assert not floor.is_met_by("a", 9, 20.0)
    assert floor.needs_hello("a", 20.0), "there may be no other commit"
    assert floor.is_met_by("a", 9, 20.1)
    assert floor.is_met_by("a", 10, 11.0), "commits are taken in whole, so it has the next one"
    clock.now = 30.0
    floor.note(9, 1, False)
    assert floor.is_met_by("a", 10, 11.0)
    assert not floor.needs_hello("a", 11.0)
    floor.note(8, 1, True)
    assert floor.is_met_by("a", 10, 11.0), "what it may show more is counted already"


def test_only_an_answer_whose_log_is_known_has_a_position() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(9, 1, True)
    floor.place("a", 11.0)
    assert floor.latest_position == ("a", 9)
    floor.note(14, 2, False)
    assert floor.latest_position is None, "it may be far beyond the position known before"
    floor.note(None, 1, False)
    assert floor.latest_position is None


def test_a_hello_of_before_places_no_connection() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(5, 1, False)
    floor.place("a", 10.0)
    clock.now = 20.0
    floor.note(6, 1, False)
    assert not floor.is_met_by("a", 1_000, 15.0)


def test_an_answer_that_comes_late_from_an_older_log_takes_nothing_back() -> None:
    clock = Clock(10.0)
    floor = ReadWatermark(clock)
    floor.note(5, 1, False)
    floor.place("a", 11.0)
    clock.now = 12.0
    floor.note(0, 2, False)
    floor.place("b", 13.0)
    clock.now = 14.0
    floor.note(3, 2, False)
    clock.now = 15.0
    floor.note(6, 1, False)
    assert not floor.is_met_by("a", 7, 11.0), "it lacks what was seen in the newer log"
    assert floor.is_met_by("b", 4, 15.1)


def test_however_many_connections_there_were_the_floor_stays_small() -> None:
    clock = Clock()
    floor = ReadWatermark(clock)
    for connection in range(1, 1_000):
        floor.note(0, connection, False)
        clock.now += 1
        floor.place("a", clock.now)
    assert len(floor._logs) + len(floor._unknown) < 100
