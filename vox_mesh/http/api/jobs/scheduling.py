"""Scheduling of the mesh: crons, rules, job kinds and the draining of workers."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from vox_mesh.errors import BadValue
from vox_mesh.http.api.jobs.manifests import GivenManifest
from vox_mesh.http.api.operations import Operations, RequestModel, Seconds, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import writes
from vox_mesh.http.principals.outputs import refuse_unread_predecessors
from vox_mesh.model.jobs.manifest_fields import Kind
from vox_mesh.model.jobs.scheduling.rule import MAX_FIELDS
from vox_mesh.model.oplog import op_names
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import (
    CronView,
    KindView,
    RemovedCronView,
    RemovedRuleView,
    RuleView,
    WorkerView,
    find_worker,
    rules_of,
    workers,
)

CRONS: Final = Operations("crons")

DefinitionName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


@CRONS.get("/v1/crons")
async def list_crons(mesh: MeshServices, query: PageQuery) -> Page[CronView]:
    """List the crons with their next time and last job."""
    return query.page_of([CronView.of(each) for each in await mesh.crons.listed()], lambda cron: cron.name)


class CronRequest(RequestModel):
    """A manifest and its times: minute, hour, day of the month, month and day of the week.

    The expression may also be `every N bars`.
    """

    expression: Annotated[str, Field(min_length=1, max_length=200, examples=["0 8 * * MON-FRI"])]
    timezone: Annotated[str, Field(min_length=1, max_length=64, examples=["Europe/Berlin"])] = "UTC"
    manifest: GivenManifest


@CRONS.put("/v1/crons/{name}", needs=writes(op_names.ADD_CRON))
async def add_cron(mesh: MeshServices, name: DefinitionName, body: CronRequest) -> CronView:
    """Add a cron; an identical one is unchanged, a different one of this name is refused."""
    await refuse_unread_predecessors(mesh, [body.manifest])
    return CronView.of(await mesh.crons.add(name, body.expression, body.manifest, body.timezone))


@CRONS.delete("/v1/crons/{name}", needs=writes(op_names.REMOVE_CRON))
async def remove_cron(mesh: MeshServices, name: DefinitionName) -> RemovedCronView:
    """Remove a cron; jobs that it has scheduled stay."""
    await mesh.crons.remove(name)
    return RemovedCronView(name)


RULES: Final = Operations("rules")


@RULES.get("/v1/rules")
async def list_rules(mesh: MeshServices, query: PageQuery) -> Page[RuleView]:
    """List the rules with their last op and job."""
    return query.page_of([RuleView.of(each) for each in await mesh.rules.listed()], lambda rule: rule.name)


class RuleRequest(RequestModel):
    """The kind of op that fires the rule, values that fields of its payload must have, and a manifest."""

    op_kind: Annotated[str, Field(min_length=1, max_length=64, examples=["com.example.pushed"])]
    fields: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS, examples=[{"branch": "main"}])] = Field(
        default_factory=dict
    )
    manifest: GivenManifest


@RULES.put("/v1/rules/{name}", needs=writes(op_names.ADD_RULE))
async def add_rule(mesh: MeshServices, name: DefinitionName, body: RuleRequest) -> RuleView:
    """Add a rule; an identical one is unchanged, a different one of this name is refused."""
    await refuse_unread_predecessors(mesh, [body.manifest])
    return RuleView.of(await mesh.rules.add(name, body.op_kind, body.manifest, body.fields))


@RULES.delete("/v1/rules/{name}", needs=writes(op_names.REMOVE_RULE))
async def remove_rule(mesh: MeshServices, name: DefinitionName) -> RemovedRuleView:
    """Remove a rule; jobs that it has scheduled stay."""
    await mesh.rules.remove(name)
    return RemovedRuleView(name)


KINDS: Final = Operations("kinds")

Count = Annotated[int, Field(ge=1, le=1_000_000)]


@KINDS.get("/v1/kinds")
async def list_kinds(mesh: MeshServices, query: PageQuery) -> Page[KindView]:
    """List the kinds that have rules."""
    return query.page_of(
        [KindView.of(each) for each in await mesh.job_kinds.listed()], lambda each: each.kind
    )


@KINDS.post("/v1/kinds/{kind}/pause", needs=writes(op_names.SET_KIND))
async def pause_kind(mesh: MeshServices, kind: Kind) -> KindView:
    """Stop the claiming of jobs of a kind; running ones go on."""
    await mesh.job_kinds.pause(kind)
    return KindView.of(await rules_of(mesh, kind))


@KINDS.post("/v1/kinds/{kind}/resume", needs=writes(op_names.SET_KIND))
async def resume_kind(mesh: MeshServices, kind: Kind) -> KindView:
    """Allow the claiming of jobs of a kind again."""
    await mesh.job_kinds.resume(kind)
    return KindView.of(await rules_of(mesh, kind))


class KindRequest(RequestModel):
    """The rules of a kind: omitted fields stay unchanged, and null removes a limit.

    At most `max_running` jobs run at a time, and `rate` are claimed in the time `per`; a claim has `lease`.
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
            raise ValueError("must be greater than 0; null removes the limit")
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


@KINDS.patch("/v1/kinds/{kind}", needs=writes(op_names.SET_KIND))
async def change_kind(mesh: MeshServices, kind: Kind, body: KindRequest) -> KindView:
    """Change the limits of a kind, or whether its inference is audited."""
    limits, is_audit = body.limits, "audited" in body.model_fields_set
    if not limits and not is_audit:
        raise BadValue("no change given", hint="pass max_running, rate and per, lease or audited")
    if limits:
        await mesh.job_kinds.limit(kind, **limits)
    if is_audit:
        await mesh.job_kinds.audit(kind, body.audited)
    return KindView.of(await rules_of(mesh, kind))


WORKERS: Final = Operations("workers")


@WORKERS.get("/v1/workers")
async def list_workers(mesh: MeshServices, query: PageQuery) -> Page[WorkerView]:
    """List the workers: kinds, capacity and running jobs."""
    return query.page_of(await workers(mesh), lambda worker: worker.node_id)


@WORKERS.put("/v1/workers/{node_id}/drain", needs=writes(op_names.DRAIN_NODE))
async def drain_worker(mesh: MeshServices, node_id: Text) -> WorkerView:
    """Stop a node from claiming jobs, until undone; running ones go on."""
    await mesh.job_kinds.drain(node_id)
    return await find_worker(mesh, node_id)


@WORKERS.delete("/v1/workers/{node_id}/drain", needs=writes(op_names.UNDRAIN_NODE))
async def undrain_worker(mesh: MeshServices, node_id: Text) -> WorkerView:
    """Let a node claim jobs again."""
    await mesh.job_kinds.undrain(node_id)
    return await find_worker(mesh, node_id)
