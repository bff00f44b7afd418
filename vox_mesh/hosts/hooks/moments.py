"""Moments of a session: its start, the work, a stop, and its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.hosts.hooks.decisions import NOTHING, HookDecision
from vox_mesh.hosts.hooks.events import HookEvent
from vox_mesh.hosts.hooks.mail import URGENT, new_messages, shown_to
from vox_mesh.hosts.hooks.options import HookOptions
from vox_mesh.hosts.hooks.sessions import HookSession, HookSessions
from vox_mesh.hosts.hooks.wording import quoted
from vox_mesh.jobs.work.reports import yielded
from vox_mesh.model.rhythm.tokens import TokenCount, TokenUsage
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.rhythm.token_ledger import AttemptCharge
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents.brief import BriefView, brief_of

_log = logging.getLogger(__name__)

_SHOWN_EVERY_MS: Final = 30_000
_HEARTBEAT_EVERY_MS: Final = 10_000
_NAMED: Final = 3
_MAX_NAME: Final = 40
_ID_SIGNS: Final = 12
_MAX_MODELS: Final = 32
_KIND: Final = "agent.session"
"""Under which kind the tokens of sessions are reported."""


class SessionMoments:
    """Answers what a session reports about itself."""

    def __init__(self, mesh: MeshServices, sessions: HookSessions) -> None:
        self._mesh = mesh
        self._sessions = sessions

    async def start(self, session: HookSession, event: HookEvent, options: HookOptions) -> HookDecision:
        """Give the agent a short brief; also after a compaction, which has made it forget."""
        await self._beat(session)
        return HookDecision(context=_brief_text(await brief_of(self._mesh, session.agent), options))

    async def work(self, session: HookSession, event: HookEvent, options: HookOptions) -> HookDecision:
        """Show the agent urgent messages, at most every 30 seconds."""
        await self._beat(session)
        now_ms = self._mesh.clock.now_ms
        if not session.may(session.shown_ms, now_ms, _SHOWN_EVERY_MS):
            return NOTHING
        session.shown_ms = now_ms
        found = await new_messages(self._mesh, session, least_priority=URGENT)
        return HookDecision(context=shown_to(session, found)) if found else NOTHING

    async def stop(self, session: HookSession, event: HookEvent, options: HookOptions) -> HookDecision:
        """Remind the agent of what it has not finished, once."""
        await self._beat(session)
        if event.is_reminded:
            return NOTHING
        reminder = await self._reminder(session)
        if not reminder or reminder == session.reminder:
            return NOTHING
        session.reminder = reminder
        return HookDecision(stays=reminder)

    async def _reminder(self, session: HookSession) -> str:
        details = await self._mesh.agents.details(session.agent)
        own = {key for key, _ in session.locks.values()}
        locks = [each.lock_key for each in details.locks if each.lock_key not in own]
        jobs = [_job_text(each.kind, each.job_id) for each in details.taken]
        parts = [
            f"{len(jobs)} taken jobs not reported: {_some(jobs)} (vox-mesh job report)" if jobs else "",
            f"{details.unacknowledged} received messages not acknowledged" if details.unacknowledged else "",
            f"{len(locks)} locks held: {_some(locks)} (vox-mesh lock release)" if locks else "",
        ]
        open_parts = [each for each in parts if each]
        if not open_parts:
            return ""
        return f"vox-mesh: before you stop: {'; '.join(open_parts)}. Finish or release them, or say why not."

    async def end(self, session: HookSession, event: HookEvent, options: HookOptions) -> HookDecision:
        """Release the locks of the session, yield the jobs of its agent, and record what it has cost."""
        is_last = self._sessions.end(session)
        if event.usage is not None:
            await self._charge(session, event)
        for key, fence_token in session.locks.values():
            with suppress(MeshError):  # it has ended, or ends with its lease
                await self._mesh.locks.release_by_token(key, fence_token)
        if is_last:
            await self._release_rest(session.agent)
        _log.info("session ended: agent=%s last=%s", session.agent, is_last)
        return NOTHING

    async def _release_rest(self, agent: str) -> None:
        """Release what an agent without a session holds; locks of a process last as long as it runs."""
        node = self._mesh.identity.node_id
        for each in await self._mesh.locks.holders():
            if (each.holder_node, each.holder_agent) == (node, agent) and each.session != "process":
                with suppress(MeshError):
                    await self._mesh.locks.release_by_token(each.lock_key, each.fence_token)
        for taken in (await self._mesh.agents.details(agent)).taken:
            with suppress(MeshError):  # taken through another node, or just reported
                job = await self._mesh.jobs.find(taken.job_id)
                report = yielded("session of its agent ended", delay=0)
                await self._mesh.work.report(job.job_id, job.claim_token, report)

    async def _charge(self, session: HookSession, event: HookEvent) -> None:
        """Charge the tokens that the session has used since they were charged last."""
        counted = Usage.of(dict(event.usage or {})).tokens.by_model
        used = {
            model: TokenCount(count.input - before.input, count.output - before.output)
            for model, count in list(counted.items())[:_MAX_MODELS]
            for before in (session.charged.by_model.get(model, TokenCount()),)
            if count.input > before.input or count.output > before.output
        }
        if used:
            await self._mesh.rhythm.refresh()
            charge = AttemptCharge("", 0, _KIND, session.agent, "", TokenUsage(used), self._mesh.clock.now_ms)
            await self._mesh.store.write(self._mesh.rhythm.tokens.charge_script(charge, is_held=False))
            session.charged = TokenUsage(counted)

    async def _beat(self, session: HookSession) -> None:
        """Report the agent alive, and renew its locks with the session `heartbeats`."""
        now_ms = self._mesh.clock.now_ms
        if session.may(session.beaten_ms, now_ms, _HEARTBEAT_EVERY_MS):
            session.beaten_ms = now_ms
            await self._mesh.locks.heartbeat(agent=session.agent)


def _brief_text(brief: BriefView, options: HookOptions) -> str:
    agent = quoted(brief.agent_id)
    locks = [f"{each.lock_key} until {each.expires_at}" for each in brief.locks]
    jobs = [_job_text(each.kind, each.job_id) for each in brief.ready]
    beat = brief.beat
    auto = " A free file is locked for you for 10 minutes when you edit it." if options.auto else ""
    lines = [
        f"vox-mesh: you are agent {agent} on node {quoted(brief.node_id)}. Others work on this project.",
        f"Unread messages: {brief.unread}{' or more' if brief.unread >= 100 else ''}.",
        f"Your locks: {_some(locks)}." if locks else "Your locks: none.",
        f"Jobs you can take: {_some(jobs)}." if jobs else "Jobs you can take: none.",
        f"Beat {beat.beat_index} of {beat.bar_len_beats}, phase {quoted(beat.phase)}.",
        f"An edit or commit of a file that another agent holds is denied; the reason says what to do.{auto}",
        "Commands: vox-mesh inbox, vox-mesh lock acquire FILE, vox-mesh send AGENT TEXT, vox-mesh job take.",
    ]
    return "\n".join(lines)


def _job_text(kind: str, job_id: str) -> str:
    """Return a job in few tokens: commands find it by the beginning of its id."""
    return f"{kind[:_MAX_NAME]} {job_id[:_ID_SIGNS]}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(quoted(each, _MAX_NAME * 2) for each in texts[:_NAMED]) + more
