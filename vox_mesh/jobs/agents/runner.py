"""The handler of agent jobs: prepares a folder, runs the agent, and keeps what it has done."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import IO, Any, Final

from vox_mesh.jobs.agents import transcript as transcripts
from vox_mesh.jobs.agents.agent_process import AgentLaunch
from vox_mesh.jobs.agents.checkout import Checkout, WorkChanges
from vox_mesh.jobs.agents.command_session import CommandSession
from vox_mesh.jobs.agents.config import AgentConfig, AgentMode
from vox_mesh.jobs.agents.confined_files import ConfinedFiles
from vox_mesh.jobs.agents.errors import AgentFailed
from vox_mesh.jobs.agents.mesh_access import AGENT_ID, McpServer, mcp_server_of
from vox_mesh.jobs.agents.outcome import AgentOutcome, ReportedTokens
from vox_mesh.jobs.agents.permissions import Decisions
from vox_mesh.jobs.agents.request import AgentRequest, read_request
from vox_mesh.jobs.agents.transcript import Transcript
from vox_mesh.jobs.agents.work_folder import WorkFolder, WorkFolders
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.jobs.exec.secrets import Redactor
from vox_mesh.jobs.worker.attempt import NeedsInput
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.store.engines.thread import to_the_end

DIFF: Final = "changes.diff"
_DIFF_TYPE: Final = "text/x-diff"
_MAX_LISTED: Final = 500
_LOST_GRACE_S: Final = 0.5
_CANCEL_GRACE_S: Final = 2.0
_CONTINUED: Final = (
    "\n\nAn earlier attempt has worked in this folder until it needed a permission, which was decided "
    "meanwhile. Go on from the files as they are."
)
_RESUMED: Final = "The permission that you asked for was decided meanwhile. Go on."


class AgentRunner:
    """Runs one configured agent for the jobs of its kind."""

    def __init__(
        self,
        name: str,
        config: AgentConfig,
        policy: ExecPolicy,
        timeout_of: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        self._name = name
        self._config = config
        self._policy = policy
        self._timeout_of = timeout_of
        self._folders = WorkFolders(config.folder)

    async def __call__(self, context: JobContext) -> dict[str, Any]:
        """Run the agent for one attempt, and return the result of the job."""
        request = read_request(context.payload, self._config)
        attempt = _Attempt(self._name, self._config, self._policy, context, request, self._timeout_of)
        async with self._folder(attempt) as folder:
            return await attempt.run(folder)

    @asynccontextmanager
    async def _folder(self, attempt: _Attempt) -> AsyncIterator[WorkFolder]:
        """Yield the folder of an attempt; it is removed, kept or parked at the end."""
        await asyncio.to_thread(self._folders.sweep, self._config.ask_within)
        folder = await asyncio.to_thread(self._folders.open, attempt.folder_name, attempt.parked)
        try:
            yield folder
        finally:
            await to_the_end(asyncio.create_task(self._leave(attempt, folder), name="vox-mesh-agent-folder"))

    async def _leave(self, attempt: _Attempt, folder: WorkFolder) -> None:
        if attempt.is_parked:
            await asyncio.to_thread(folder.park)
            return
        await asyncio.to_thread(folder.end, keep=self._config.keep)
        if not self._config.keep and attempt.checkout is not None:
            await attempt.checkout.remove()


class _Attempt:
    """One attempt of an agent at a job."""

    def __init__(
        self,
        name: str,
        config: AgentConfig,
        policy: ExecPolicy,
        context: JobContext,
        request: AgentRequest,
        timeout_of: Callable[[float], asyncio.Timeout],
    ) -> None:
        self._name = name
        self._config = config
        self._policy = policy
        self._context = context
        self._request = request
        self._timeout_of = timeout_of
        checkpoint = context.resumed if isinstance(context.resumed, dict) else {}
        self._decisions = Decisions.resumed(checkpoint, context.answer)
        self._session_id: str | None = checkpoint.get("session")
        self.parked: str | None = checkpoint.get("folder")
        """The folder of the attempt that has asked, if there is one."""
        self._base: str | None = checkpoint.get("base")
        self.folder_name = f"{context.job.ulid}-{context.job.claim_token}"
        self.is_parked = False
        self.checkout: Checkout | None = None

    async def run(self, folder: WorkFolder) -> dict[str, Any]:
        """Run the agent in its folder, and return the result of the job."""
        self.checkout = checkout = Checkout(folder.work, self._request.files)
        ref = self._base or self._request.ref if folder.is_reused else self._request.ref
        await checkout.create(self._request.repository, ref, is_reused=folder.is_reused)
        if (user := self._policy.isolation.user) is not None and not folder.is_reused:
            await asyncio.to_thread(folder.give_to, user.uid, user.gid)
        server = await asyncio.to_thread(mcp_server_of, self._config.mesh)
        given = self._config.exec_secrets
        values = await asyncio.to_thread(given.values, {name: name for name in given.sources})
        hidden = [*values.values(), *(server.secrets if server is not None else ())]
        launch = AgentLaunch(
            self._config.command, self._environment(folder, values), folder.work, self._policy, hidden
        )
        with tempfile.TemporaryFile() as file:
            transcript = Transcript(file, lambda: self._context.now_ms, lambda line: _redacted(line, hidden))
            try:
                outcome = await self._run_agent(launch, folder, transcript, server)
            except NeedsInput:
                raise
            except asyncio.CancelledError:
                if not self._context.is_cancelled:  # a limit: its job ends with what there is
                    await to_the_end(
                        asyncio.create_task(self._keep(file, folder), name="vox-mesh-agent-keep")
                    )
                raise
            except Exception:
                await self._keep(file, folder)
                raise
            return self._result(outcome, await self._keep(file, folder))

    async def _run_agent(
        self, launch: AgentLaunch, folder: WorkFolder, transcript: Transcript, server: McpServer | None
    ) -> AgentOutcome:
        limit = self._timeout_of(self._config.timeout)
        try:
            async with limit:
                if self._config.mode is AgentMode.COMMAND:
                    return await self._run_command(launch, folder, transcript)
                return await self._run_acp(launch, folder, transcript, server)
        except TimeoutError:
            if not limit.expired():
                raise
            raise AgentFailed(
                f"the agent took longer than {self._config.timeout:g} s", hint="raise its timeout"
            ) from None

    async def _run_command(
        self, launch: AgentLaunch, folder: WorkFolder, transcript: Transcript
    ) -> AgentOutcome:
        output = self._context.output
        session = CommandSession(
            launch, self._prompt(folder), transcript, lambda text: output("stdout", text)
        )
        return await session.run(self._meter)

    async def _run_acp(
        self, launch: AgentLaunch, folder: WorkFolder, transcript: Transcript, server: McpServer | None
    ) -> AgentOutcome:
        # imported late, and not in the event loop: the library takes more than a second
        session_of = await asyncio.to_thread(import_module, "vox_mesh.jobs.agents.acp_session")
        client_of = await asyncio.to_thread(import_module, "vox_mesh.jobs.agents.acp_client")
        user = self._policy.isolation.user
        files = ConfinedFiles(folder.work, None if user is None else (user.uid, user.gid))
        session = session_of.AcpSession(
            launch=launch,
            prompt=self._prompt(folder),
            resume_prompt=_RESUMED,
            client=client_of.AcpClient(
                self._config, files, self._decisions, transcript, self._context.log, str(folder.work)
            ),
            transport=session_of.AgentTransport(transcript),
            mcp_servers=[] if server is None else [server],
            resumed_id=self._session_id if folder.is_reused else None,
            cancel_grace_s=lambda: _LOST_GRACE_S if self._context.is_cancelled else _CANCEL_GRACE_S,
            on_tokens=self._charge,
        )
        try:
            outcome: AgentOutcome = await session.run(self._meter)
        except session_of.PermissionNeeded as needed:
            self._decisions.ask(needed.request)
            assert self.checkout is not None
            place = {"folder": folder.name, "session": needed.session_id, "base": self.checkout.base}
            await self._context.checkpoint({**self._decisions.document(), **place})
            self.is_parked = True
            raise NeedsInput(needed.request.question(self._name, self._config)) from None
        return outcome

    # --- what the agent gets ---------------------------------------------------------------------

    def _prompt(self, folder: WorkFolder) -> str:
        text = self._request.text(secrets.token_hex(16))
        return text + _CONTINUED if folder.is_reused else text

    def _environment(self, folder: WorkFolder, values: dict[str, str]) -> dict[str, str]:
        """Return its whole environment: only what the worker's file of agents names is passed on."""
        job, config = self._context.job, self._config
        passed = {name: value for name in config.env if (value := os.environ.get(name)) is not None}
        return {
            "PATH": self._policy.path,
            "HOME": str(config.home or folder.home),
            "LANG": "C.UTF-8",
            **passed,
            **config.variables,
            **values,
            "VOX_JOB_ID": job.job_id,
            "VOX_JOB_ULID": job.ulid,
            "VOX_JOB_ATTEMPT": str(job.attempts),
            AGENT_ID: self._name if config.mesh is None else config.mesh.agent_id,
        }

    def _meter(self, group: ProcessGroup) -> None:
        if self._context.limits is not None:
            self._context.meter.watch(group)

    def _charge(self, tokens: ReportedTokens) -> None:
        self._context.charge(
            model=self._config.model or self._name,
            input_tokens=tokens.input_tokens,
            output_tokens=tokens.output_tokens,
        )

    # --- what is kept ----------------------------------------------------------------------------

    async def _keep(self, file: IO[bytes], folder: WorkFolder) -> WorkChanges:
        """Keep the transcript and the changes as artifacts, and return the changes."""
        file.seek(0)
        body = await asyncio.to_thread(file.read)
        if body:
            await self._context.keep(transcripts.NAME, body, transcripts.TYPE)
        changes = await self._changes(folder)
        if changes.problem is not None:
            self._context.log(f"changes not kept: {changes.problem}")
        if changes.diff:
            await self._context.keep(DIFF, changes.diff, _DIFF_TYPE)
        return changes

    async def _changes(self, folder: WorkFolder) -> WorkChanges:
        assert self.checkout is not None
        user = self._policy.isolation.user
        fault = await asyncio.to_thread(folder.fault, os.geteuid() if user is None else user.uid)
        return await self.checkout.changes() if fault is None else WorkChanges([], None, fault)

    def _result(self, outcome: AgentOutcome, changes: WorkChanges) -> dict[str, Any]:
        tokens = outcome.tokens
        return {
            "agent": self._name,
            "agent_info": outcome.details,
            "message": outcome.message,
            "stop_reason": outcome.stop_reason,
            "changed": changes.files[:_MAX_LISTED],
            "changed_count": len(changes.files),
            "diff": DIFF if changes.diff else None,
            "tokens": None if tokens is None else vars(tokens),
            "transcript": transcripts.NAME,
        }


def _redacted(line: bytes, hidden: list[str]) -> bytes:
    redactor = Redactor(hidden)
    return redactor.redact(line) + redactor.rest()
