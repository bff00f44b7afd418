"""Job kinds and their rules for the whole mesh."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Asked, Operations, Seconds
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.model.jobs.manifest_fields import Kind
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import KindView, rules_of

KINDS: Final = Operations("kinds")

Count = Annotated[int, Field(ge=1, le=1_000_000)]


@KINDS.get("/v1/kinds")
async def list_kinds(mesh: MeshServices, query: PageAsked) -> Page[KindView]:
    """List the kinds of which anything is decided."""
    return query.page_of(
        [KindView.of(each) for each in await mesh.job_kinds.listed()], lambda each: each.kind
    )


@KINDS.post("/v1/kinds/{kind}/pause")
async def pause_kind(mesh: MeshServices, kind: Kind) -> KindView:
    """Have no more jobs of a kind claimed, by anyone; those in hand go on."""
    await mesh.job_kinds.pause(kind)
    return KindView.of(await rules_of(mesh, kind))


@KINDS.post("/v1/kinds/{kind}/resume")
async def resume_kind(mesh: MeshServices, kind: Kind) -> KindView:
    """Have jobs of a kind claimed again."""
    await mesh.job_kinds.resume(kind)
    return KindView.of(await rules_of(mesh, kind))


class ToLimit(Asked):
    """What is decided of a kind: what is left out stays as it is, and null is no limit.

    `max_running` are in hand at a time, `rate` are claimed in the time `per`, and a claim holds for `lease`.
    """

    max_running: Count | None = None
    rate: Count | None = None
    per: Seconds | None = None
    lease: Seconds | None = None
    audited: bool = False

    @field_validator("per", "lease")
    @classmethod
    def _is_not_zero(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("a duration of nothing; null is no limit")
        return value

    @property
    def limits(self) -> dict[str, Any]:
        """The given limits."""
        given = self.model_fields_set
        limits: dict[str, Any] = {
            name: getattr(self, name) for name in ("max_running", "rate") if name in given
        }
        if self.per is not None:
            limits["per_ms"] = round(self.per * 1_000)
        if "lease" in given:
            limits["lease_ms"] = None if self.lease is None else round(self.lease * 1_000)
        return limits


@KINDS.patch("/v1/kinds/{kind}")
async def change_kind(mesh: MeshServices, kind: Kind, body: ToLimit) -> KindView:
    """Limit jobs of a kind in the whole mesh, or have their inference recorded."""
    limits, is_audit = body.limits, "audited" in body.model_fields_set
    if not limits and not is_audit:
        raise BadValue("nothing is to change", hint="give max_running, rate and per, lease or audited")
    if limits:
        await mesh.job_kinds.limit(kind, **limits)
    if is_audit:
        await mesh.job_kinds.audit(kind, body.audited)
    return KindView.of(await rules_of(mesh, kind))
