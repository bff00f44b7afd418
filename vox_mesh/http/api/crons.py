"""Crons: recurring jobs."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.api.manifests import GivenManifest
from vox_mesh.http.api.operations import Asked, Operations
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import CronView, RemovedCronView

CRONS: Final = Operations("crons")

CronName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


@CRONS.get("/v1/crons")
async def list_crons(mesh: MeshServices, query: PageAsked) -> Page[CronView]:
    """List the crons: when each is due next, and the job of its last time."""
    return query.page_of([CronView.of(each) for each in await mesh.crons.listed()], lambda cron: cron.name)


class ToRepeat(Asked):
    """When a job comes, and which: minute, hour, day of the month, month and day of the week."""

    expression: Annotated[str, Field(min_length=1, max_length=200, examples=["0 8 * * MON-FRI"])]
    timezone: Annotated[str, Field(min_length=1, max_length=64, examples=["Europe/Berlin"])] = "UTC"
    manifest: GivenManifest


@CRONS.put("/v1/crons/{name}")
async def add_cron(mesh: MeshServices, name: CronName, body: ToRepeat) -> CronView:
    """Have a job scheduled again and again; one that is there already stays, or another is refused."""
    return CronView.of(await mesh.crons.add(name, body.expression, body.manifest, body.timezone))


@CRONS.delete("/v1/crons/{name}")
async def remove_cron(mesh: MeshServices, name: CronName) -> RemovedCronView:
    """Have no more jobs come of a cron; those that have come stay."""
    await mesh.crons.remove(name)
    return RemovedCronView(name)
