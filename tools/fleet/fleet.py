"""Build the fleet of a web shop: agents at work, and one of everything that waits for a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from tools.fleet.node_process import NodeProcess, settings_of
from vox_mesh import ConflictRecorded, Manual, Mesh, acting_as, load_settings
from vox_mesh.errors import ApprovalPending
from vox_mesh.node import MeshNode

SERVING: Final = "north"
"""The node whose console is opened; it owns the mesh."""

SECOND: Final = "east"
LEFT: Final = "west"
CODERS: Final = ("coder-ann", "coder-ben", "coder-cem")
RATES: Final = """\
currency: USD
models:
  sonnet: {input: 3.00, output: 15.00}
  haiku: {input: 1.00, output: 5.00}
"""
_LONG: Final = "1h"
_MEMORIES: Final = "memories"


@dataclass
class Fleet:
    """A running mesh, and the ids of what is in it, by short names."""

    folder: Path
    node: NodeProcess
    others: list[NodeProcess] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    waiting: list[asyncio.Task[Any]] = field(default_factory=list)

    async def close(self) -> None:
        """End all processes of the fleet."""
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)
        await asyncio.gather(*(node.kill() for node in (self.node, *self.others)))


@asynccontextmanager
async def running_fleet(folder: Path, *, has_second: bool = True) -> AsyncIterator[Fleet]:
    """Build a fleet in an empty folder, and end it at the end of the block."""
    ids = await _prepare(folder)
    (folder / "rates.yaml").write_text(RATES)
    fleet = Fleet(
        folder, await NodeProcess.start(folder, SERVING, "--rates", str(folder / "rates.yaml")), ids=ids
    )
    try:
        if has_second:
            fleet.others.append(
                await NodeProcess.start(folder, SECOND, "--worker-exec", "--agent-id", "runner")
            )
        await _fill(fleet)
        yield fleet
    finally:
        await fleet.close()


# --- before the node runs: what only the owner, or Python, can do ---------------------------------


async def _prepare(folder: Path) -> dict[str, str]:
    """Admit an agent that asks, have writers conflict, and let a node come and leave."""
    async with Mesh.open(load_settings(**settings_of(folder, SERVING))) as node:
        await node.grants.admit("deployer")
        await node.grants.issue("deployer", ["mesh.read", "ask job.schedule", "ask lock.break"])
        ids = {
            "approval": await ask_approval(
                node, "deploy.production", {"version": "2.4.0", "region": "eu-central"}
            ),
            "approval_2": await ask_approval(node, "deploy.rollback", {"version": "2.3.9"}),
            "conflict": await record_conflict(node, "deploy-notes"),
            "conflict_2": await record_conflict(node, "style-guide"),
        }
        async with Mesh.open(load_settings(**settings_of(folder, LEFT))):
            pass
    return ids


async def ask_approval(node: MeshNode, kind: str, payload: Any) -> str:
    """Have the agent `deployer` ask for a job; return the id of the approval."""
    try:
        with acting_as("deployer"):
            await node.jobs.schedule(kind, payload)
    except ApprovalPending as pending:
        return pending.approval_id
    raise AssertionError("the job needed no approval")


async def record_conflict(mesh: Mesh, name: str, text: str = "use the blue pool") -> str:
    """Have two agents write one row from the same version; return the id of the conflict."""
    key = {"memory_key": name}
    await mesh.occ.write(_MEMORIES, key, {"content": text, "importance": 1, "tags": "ops"}, base=None)
    base = await mesh.occ.read(_MEMORIES, key)
    await mesh.occ.write(_MEMORIES, key, {"content": f"{text}, then the green one", "importance": 5}, base)
    late = await mesh.occ.write(
        _MEMORIES,
        key,
        {"content": f"{text} after 18:00", "tags": "ops, night"},
        base,
        strategy=Manual(),
        agent=CODERS[0],
    )
    assert isinstance(late, ConflictRecorded)
    return late.conflict_id


# --- while it runs: what agents do over HTTP -------------------------------------------------------


async def _fill(fleet: Fleet) -> None:
    for part in (_budgets, _jobs, _locks, _messages, _rhythm):
        await part(fleet)


async def _budgets(fleet: Fleet) -> None:
    budgets = {
        f"agent:{CODERS[0]}": {"max_tokens": 140_000, "max_money": "5.00 USD"},
        f"agent:{CODERS[1]}": {"max_money": "20.00 USD"},
        "account:research": {"max_bu": 500},
    }
    for subject, budget in budgets.items():
        await fleet.node.send("/v1/budgets", {"subject": subject, "budget": budget}, method="PUT")


async def schedule(node: NodeProcess, *manifests: dict[str, Any], agent: str = "planner") -> list[str]:
    """Schedule jobs; return their ids in the order of the manifests."""
    answer = await node.send("/v1/jobs", {"manifests": [*manifests], "new": True}, agent=agent)
    jobs = answer["jobs"] if isinstance(answer, dict) else answer
    return [job["job_id"] for job in jobs]


async def take(node: NodeProcess, kind: str, agent: str, lease: str = _LONG) -> tuple[str, int]:
    """Have an agent take a job of a kind; return its id and claim token."""
    (taken,) = await node.send("/v1/jobs/take", {"kinds": [kind], "lease": lease}, agent=agent)
    return taken["job_id"], taken["claim_token"]


async def report(node: NodeProcess, job: str, token: int, agent: str, outcome: str, **more: Any) -> None:
    """Have an agent report how its attempt went."""
    await node.send(f"/v1/jobs/{job}/report", {"claim_token": token, "outcome": outcome, **more}, agent=agent)


async def _jobs(fleet: Fleet) -> None:
    node, ids = fleet.node, fleet.ids
    await _succeeded(fleet)
    await _failed(fleet)
    await _asking(fleet)
    await _running(fleet)
    first, second = await schedule(
        node, {"kind": "code.plan", "payload": {"feature": "gift cards"}}, {"kind": "docs.write"}
    )
    edits = await schedule(
        node,
        *(
            {"kind": "code.edit", "payload": {"file": name}, "after": [first]}
            for name in ("cart", "mail", "tax")
        ),
    )
    (review,) = await schedule(node, {"kind": "code.review", "after": edits, "priority": 2})
    (ids["pending"],) = await schedule(node, {"kind": "release.notes", "after": [review, second]})
    ids["pending_root"] = first
    (ids["aborted"],) = await schedule(node, {"kind": "report.nightly"})
    await node.send(
        f"/v1/jobs/{ids['aborted']}/abort", {"reason": "the shop is closed today"}, agent="planner"
    )


async def _succeeded(fleet: Fleet) -> None:
    node = fleet.node
    await schedule(
        node, {"kind": "test.unit", "payload": {"suite": "cart"}, "budget": {"charge_to": "research"}}
    )
    job, token = await take(node, "test.unit", CODERS[1])
    await node.send(
        f"/v1/jobs/{job}/log",
        {"claim_token": token, "text": "collected 214 tests\n214 passed\n"},
        agent=CODERS[1],
    )
    await node.send(
        f"/v1/jobs/{job}/artifacts",
        {"claim_token": token, "name": "coverage.txt", "type": "text/plain", "text": "lines 97 %\n"},
        agent=CODERS[1],
    )
    usage = {"input_tokens": 48_200, "output_tokens": 6_100, "model": "haiku"}
    await report(node, job, token, CODERS[1], "succeeded", result={"passed": 214}, usage=usage)
    fleet.ids["succeeded"] = job


async def _failed(fleet: Fleet) -> None:
    node = fleet.node
    await schedule(
        node,
        {"kind": "image.resize", "payload": {"file": "hero.png"}, "max_attempts": 2, "backoff": "1ms"},
        {"kind": "image.resize", "payload": {"file": "logo.png"}, "max_attempts": 1},
    )
    ends = 0
    while ends < 2:
        job, token = await take_soon(node, "image.resize", CODERS[2])
        usage = {"input_tokens": 9_000, "output_tokens": 800, "model": "sonnet"}
        await report(
            node, job, token, CODERS[2], "failed", reason="the decoder ended with exit code 1", usage=usage
        )
        state = (await node.get(f"/v1/jobs/{job}"))["state"]
        ends += state == "failed"
        fleet.ids["failed" if ends < 2 else "failed_2"] = job


async def take_soon(node: NodeProcess, kind: str, agent: str) -> tuple[str, int]:
    """Take a job that is ready now or in a moment."""
    (taken,) = await node.send("/v1/jobs/take", {"kinds": [kind], "wait": "20s", "lease": _LONG}, agent=agent)
    return taken["job_id"], taken["claim_token"]


async def _asking(fleet: Fleet) -> None:
    node = fleet.node
    for name, text, choices in (
        ("question", "Which currency should gift cards use?", ["EUR", "USD", "both"]),
        ("question_2", "What should the banner say?", []),
    ):
        await schedule(node, {"kind": "design.ask", "payload": {"topic": name}})
        job, token = await take(node, "design.ask", CODERS[0])
        await report(node, job, token, CODERS[0], "needs_input", question={"text": text, "choices": choices})
        fleet.ids[name] = job


async def _running(fleet: Fleet) -> None:
    node = fleet.node
    for agent, kind, done in ((CODERS[0], "code.refactor", 0.4), (CODERS[1], "test.browser", 0.75)):
        await schedule(node, {"kind": kind, "payload": {"path": "src/checkout"}, "priority": 2})
        job, token = await take(node, kind, agent)
        progress = {"claim_token": token, "fraction": done, "message": "moving the tax rules"}
        progress["usage"] = {"input_tokens": 120_000, "output_tokens": 14_000, "model": "sonnet"}
        await node.send(f"/v1/jobs/{job}/progress", progress, agent=agent)
        await node.send(
            f"/v1/jobs/{job}/log",
            {"claim_token": token, "text": f"{kind}: step 1 of 3\nstep 2 of 3\n"},
            agent=agent,
        )
        fleet.ids["running" if agent == CODERS[0] else "running_2"] = job


async def _locks(fleet: Fleet) -> None:
    node = fleet.node
    held = ((["file:src/checkout/**"], CODERS[0]), (["file:src/mail.py", "template:receipt"], CODERS[1]))
    for keys, agent in held:
        await node.send("/v1/locks", {"keys": keys, "agent": agent, "ttl": _LONG})
    for agent in CODERS[1:]:
        await node.send("/v1/locks", {"keys": ["docs"], "agent": agent, "ttl": _LONG, "shared": True})
    fleet.ids["lock"] = "file:src/mail.py"
    waiting = {"keys": ["file:src/checkout/tax.py"], "agent": CODERS[2], "ttl": _LONG, "wait": "30s"}
    fleet.waiting.append(asyncio.create_task(_wait_for_lock(node, waiting)))


async def _wait_for_lock(node: NodeProcess, request: dict[str, Any]) -> None:
    """Wait for a lock, again and again while it is held: a request ends before its client gives up."""
    while (await node.ask("POST", "/v1/locks", request)).status_code == HTTPStatus.CONFLICT:
        pass


async def send_message(node: NodeProcess, sender: str, to: str, payload: Any, **more: Any) -> str:
    """Send a message; return its id."""
    sent = await node.send("/v1/messages", {"to": to, "sender": sender, "payload": payload, **more})
    (message,) = sent if isinstance(sent, list) else [sent]
    uuid: str = message["message_uuid"]
    return uuid


async def _messages(fleet: Fleet) -> None:
    node, ids = fleet.node, fleet.ids
    talk = "gift-cards"
    for sender, to, text in (
        ("planner", CODERS[0], "Gift cards first, please: the campaign starts on Monday."),
        (CODERS[0], "planner", "On it. The tax rules need a decision, I have asked."),
        ("planner", CODERS[0], "Thank you. Ben takes the mails."),
    ):
        ids["message"] = await send_message(node, sender, to, {"text": text}, thread=talk)
    ids["overdue"] = await send_message(node, "planner", "reviewer", "Please review today.", ack_within="1ms")
    ids["dead"] = await send_message(node, "monitor", "pager", {"alert": "disk is 91 % full"}, max_attempts=1)
    (claimed,) = await node.send("/v1/inbox/pager/claim", {"limit": 1})
    nack = {"claim_owner": claimed["claim_owner"], "reason": "no such pager"}
    await node.send(f"/v1/messages/{ids['dead']}/nack", nack)


async def _rhythm(fleet: Fleet) -> None:
    node = fleet.node
    thread = await node.send(
        "/v1/rhythm/help", {"to": CODERS[1], "body": "Which mail template?", "agent": CODERS[0]}
    )
    path = f"/v1/rhythm/help/{thread['thread_id']}"
    await node.send(f"{path}/promise", {"promise_beats": 8, "agent": CODERS[1], "confidence": 0.8})
    broken = await node.send(
        "/v1/rhythm/help", {"to": CODERS[2], "body": "Is the logo final?", "agent": CODERS[0]}
    )
    path = f"/v1/rhythm/help/{broken['thread_id']}"
    await node.send(f"{path}/promise", {"promise_beats": 4, "agent": CODERS[2]})
    await node.send(f"{path}/withdraw", {"reason": "out of time", "agent": CODERS[2]})
    fleet.ids |= {"promise": thread["thread_id"], "broken_promise": broken["thread_id"]}
    for agent, task, state in ((CODERS[0], "checkout", "executing"), (CODERS[1], "mail", "review")):
        await node.send(
            "/v1/rhythm/status", {"agent_id": agent, "task_id": task, "state": state, "progress": 0.5}
        )
    waits = {"agent_id": CODERS[2], "task_id": "tax", "state": "waiting", "wait_for": ["checkout"]}
    await node.send("/v1/rhythm/status", waits)
    await node.send("/v1/rhythm/incident", {"reason": "the payment provider is slow"}, method="PUT")
