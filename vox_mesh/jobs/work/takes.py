"""Takes: which jobs nodes have claimed on behalf of agents, and what the agents have kept so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, NotItsAgent, NotKnown, StaleClaim
from vox_mesh.jobs.proof.artifacts import Artifact
from vox_mesh.jobs.transitions import SQL as JOBS
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.jobs.proof import AgentAttestation, Output
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.oplog.verification import READ_ERRORS
from vox_mesh.nodes.identity import Identity
from vox_mesh.store.acting import current_agent
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

MAX_ARTIFACTS: Final = 64

_SQL: Final = named("job_takes")
_PREFIX: Final = b"vox-mesh kept artifact 1\n"
_SIGNATURE: Final = "signature"


class HeldTake(NamedTuple):
    """A job, and on behalf of which agent its node holds it or did last."""

    job: Job
    """With the op that started the attempt as its last one, as a worker knows it."""
    attested: AgentAttestation
    lease_ms: int
    artifacts: Sequence[Artifact] = ()

    def refuse_others(self) -> None:
        """Refuse the acting agent if another one has taken the job."""
        agent, own = current_agent(), self.attested.agent
        if agent is not None and agent != own:
            raise NotItsAgent(f"job {self.job.job_id} was taken by agent {own}, not by {agent}")


class KnownTake(NamedTuple):
    """A take of this process, without artifacts, and whether a score or a budget limits its attempt."""

    take: HeldTake
    has_limits: bool


class JobTakes:
    """Reads and extends the takes of a mesh."""

    def __init__(self, store: Store, identity: Callable[[], Identity]) -> None:
        """`identity`: that of the node, whose key signs what agents keep. A row alone becomes no output."""
        self._store = store
        self._identity = identity

    async def find(self, job_id: str) -> tuple[Job, HeldTake | None]:
        """Return a job and its last take, as the database has them; `None` if a worker claimed it last."""
        rows = await self._store.read(JOBS["taken"], (*self._store.mesh_id, job_id), fresh=True)
        if not rows:
            raise NotKnown(f"there is no job {job_id}", hint="run `vox-mesh job list`")
        *row, text = rows[0]
        job = Job.of_row(row)
        if text is None:
            return job, None
        agent, grant, lease_ms, artifacts, start_op = orjson.loads(text)
        kept = self._kept(job, artifacts) if job.claimer == self._identity().node_id else []
        held = job if start_op is None else job._replace(last_op=start_op)
        return job, HeldTake(held, AgentAttestation(agent, grant), lease_ms, kept)

    async def has_successor(self, agent: str, job_id: str) -> bool:
        """Return whether an agent holds a job that waited for this one."""
        values = (*self._store.mesh_id, agent, job_id)
        return bool((await self._store.read(_SQL["has_successor"], values, fresh=True))[0][0])

    async def keep(self, take: HeldTake, artifact: Artifact, record: Statement) -> None:
        """Add an artifact to what the agent has kept. Raises `StaleClaim` if the claim is over."""
        others = [each for each in take.artifacts if each.name != artifact.name]
        if len(others) >= MAX_ARTIFACTS:
            raise BadValue(f"artifacts of a job must be at most {MAX_ARTIFACTS}")
        output = artifact.output.document()
        signature = self._identity().key.sign(self._signed_text(take.job, output))
        document = orjson.dumps({**output, _SIGNATURE: signature}).decode()
        values = (*self._store.mesh_id, take.job.job_id, take.job.claim_token, document, MAX_ARTIFACTS)
        await self._store.write(Script(self.guard(take.job), record, Statement(_SQL["keep"], values)))

    def guard(self, job: Job) -> Statement:
        """Return the guard of a script that is written only while the claim of a job is held."""
        values = (*self._store.mesh_id, job.job_id, job.claim_token)
        return Statement(_SQL["refuse_if_over"], values, refusal=StaleClaim.code)

    def _kept(self, job: Job, text: str) -> list[Artifact]:
        """Return the artifacts that were kept through this node under the present claim of a job."""
        kept: list[Artifact] = []
        with suppress(BadValue):  # a planted row may hold anything
            found: Any = read_stored(text)
            for each in found if isinstance(found, list) else ():
                if self._is_signed(job, each):
                    kept.append(Artifact(*(each[name] for name in Output._fields)))
                else:
                    _log.error("artifact ignored, its node has not signed it: job_id=%s", job.job_id)
        return kept

    def _is_signed(self, job: Job, kept: Any) -> bool:
        try:
            output = {name: kept[name] for name in Output._fields}
            public_key = self._identity().key.public
            return is_signed(self._signed_text(job, output), kept[_SIGNATURE], public_key)
        except READ_ERRORS:
            return False

    def _signed_text(self, job: Job, output: Mapping[str, Any]) -> bytes:
        claim = [*self._store.mesh_id, job.job_id, job.claim_token]
        return _PREFIX + canonical([*claim, dict(output)]).encode()

    async def logged_chars(self, job: Job) -> int:
        """Return how many characters the current attempt at a job has logged."""
        values = (*self._store.mesh_id, job.job_id, job.claim_token)
        return (await self._store.read(_SQL["logged_chars"], values, fresh=True)).value or 0


async def held_count(store: Store, agent: str) -> int:
    """Return how many jobs an agent holds, through any node; expired leases do not count."""
    return (await store.read(_SQL["held_count"], (*store.mesh_id, agent))).value or 0


async def forget_takes(store: Store) -> None:
    """Remove the takes whose claims are over."""
    if (await store.read(_SQL["is_any_over"], store.mesh_id)).value:
        await store.write(Script(Statement(_SQL["forget"], store.mesh_id)))


def stale_claim(job: Job, claim_token: int) -> StaleClaim:
    """Return the error for a claim that is over."""
    error = StaleClaim(StaleClaim.code, statement=0)
    is_later = job.claim_token > claim_token
    error.hint = (
        f"job {job.job_id} is {job.state}"
        + (", under a later claim token" if is_later else "")
        + ": stop working on it, and take another"
    )
    return error
