"""A worker's places: how many are free, in all and for each handler."""

from __future__ import annotations

from vox_mesh.heartbeat.presence import Activity
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.capacity import Capacity
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import HandlerSet


async def _nothing(context: JobContext) -> None:
    pass


def _places(capacity: int) -> tuple[Capacity, HandlerSet, Activity]:
    activity = Activity()
    places = Capacity(activity)
    places.handlers.handles("narrow.*", concurrency=2)(_nothing)
    places.handlers.handles("wide")(_nothing)
    places.open(capacity)
    return places, places.handlers, activity


def _claimable(*kinds: str) -> list[Claimable]:
    return [Claimable(number, f"{number}", kind, 1, 0, 0, "00") for number, kind in enumerate(kinds)]


def test_many_are_free_from_the_half_of_them_on() -> None:
    places, handlers, activity = _places(5)
    seen = []
    for _ in range(5):
        places.take(handlers.of("wide"))
        seen.append((places.free, places.has_many_free, activity.load))
    assert seen == [(4, True, 1), (3, True, 2), (2, False, 3), (1, False, 4), (0, False, 5)]
    places.release(handlers.of("wide"))
    assert (places.free, activity.load) == (1, 4)


def test_no_more_are_taken_than_their_handler_has_places_whatever_their_kinds() -> None:
    places, handlers, _ = _places(8)
    places.take(handlers.of("narrow.a"))
    places.take(None)  # a command
    jobs = _claimable("narrow.a", "wide", "narrow.b", "narrow.a", "wide")
    assert [job.id for job in places.within_limits(jobs)] == [0, 1, 4]
    assert places.free == 6
