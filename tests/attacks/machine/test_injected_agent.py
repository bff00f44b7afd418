"""An agent that follows instructions it was given by an attacker: all that it tries is refused and recorded.

It runs as another user than its node, with a narrow grant, and speaks to the node over the agents' socket.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.running.confined import IS_ROOT, OTHER_USER
from tools.homes import FILE
from vox_mesh import Settings, acting_as
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.oplog.op_names import ACCESS_REFUSED
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.nodes.node_sockets import FILE as PRIVATE_SOCKET
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store import new_key
from vox_mesh.store.slots import slot_folder

pytestmark = pytest.mark.skipif(not IS_ROOT, reason="only root can start a process of another user")

_AGENT: Final = "coder"
_GRANT: Final = (
    *("lock.acquire on file:src/**", "message.send to lead", "job.take kind notes.*"),
    "job.schedule kind notes.* rate 2/1h",
)
_CONTROL: Final = "lock what it may lock"
_NARROWED: Final = "take everything"
_REFUSED: Final = 403

_PROGRAM: Final = """
import http.client, json, os, socket, sys
given = json.load(sys.stdin)
os.setgroups([])
os.setgid(given["user"])
os.setuid(given["user"])

def ask(method, path, body=None, headers=None, file=given["socket"]):
    connection = http.client.HTTPConnection("node", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(file)
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()

for name, request in given["attempts"]:
    print(json.dumps([name, *ask(*request)]), flush=True)
for name, path in given["files"]:
    try:
        open(path, "rb").read(1)
        print(json.dumps([name, 200, "read"]))
    except OSError as error:
        print(json.dumps([name, 403, error.strerror]))
try:
    print(json.dumps(["private socket", *ask("GET", "/v1/nodes", file=given["private"])]))
except OSError as error:
    print(json.dumps(["private socket", 403, error.strerror]))
"""


class _Scene(NamedTuple):
    """What others have: a lock, messages, a job that is taken, and one that waits."""

    fence_token: int
    message: str
    taken: str
    claim_token: int
    waiting: str
    grant: str
    folder: Path


async def _scene(node: MeshNode, folder: Path) -> _Scene:
    with acting_as("boss"):
        lock = await node.locks.acquire("file:src/a", agent="boss")
        message = await node.messages.send("boss", {"secret": "plans"}, sender="lead")
        job = await node.jobs.schedule("deploy")
        waiting = await node.jobs.schedule("deploy", {"n": 2})
        (taken,) = await node.work.take("boss", ["deploy"])
        assert taken.job.job_id == job.job_id
        await node.rhythm.budgets.set("agent:coder", Budget(max_bu=10))
        node.oplog.register(OpKind("pushed"))
        await node.oplog.append("pushed", {})
        await node.crons.add("nightly", "0 3 * * *", Manifest.of(kind="deploy"))
    await node.grants.admit(_AGENT)
    grant = await node.grants.issue(_AGENT, _GRANT)
    await node.principals.known.renew()  # of reads, a node knows for up to a second what was before
    return _Scene(
        lock.fence_token, message.message_uuid, job.job_id, taken.claim_token, waiting.job_id,
        grant.grant_id, folder,
    )  # fmt: skip


def _attempts(scene: _Scene, node: str) -> list[tuple[str, tuple[Any, ...]]]:
    lock, claim = (
        {"lock_key": "file:src/a", "fence_token": scene.fence_token},
        {"claim_token": scene.claim_token},
    )
    taken, waiting = f"/v1/jobs/{scene.taken}", f"/v1/jobs/{scene.waiting}"
    message = f"/v1/messages/{scene.message}"
    notes = {"kind": "notes.a"}
    policy = {"cluster_id": "mine", "initial_bpm": 10}
    as_boss = {"Vox-Agent": "boss"}
    return [
        (_CONTROL, ("POST", "/v1/locks", {"keys": ["file:src/own"], "agent": _AGENT})),
        ("release another's lock", ("POST", "/v1/locks/release", lock)),
        ("renew another's lock", ("POST", "/v1/locks/renew", lock)),
        ("release all that another holds", ("POST", "/v1/locks/release-held", {"agent": "boss"})),
        ("break a lock", ("POST", "/v1/locks/break", {"lock_key": "file:src/a", "reason": "mine"})),
        ("lock outside of the grant", ("POST", "/v1/locks", {"keys": ["file:deploy"], "agent": _AGENT})),
        ("lock in another's name", ("POST", "/v1/locks", {"keys": ["file:src/b"], "agent": "boss"})),
        ("read another's inbox", ("GET", "/v1/inbox/boss")),
        ("wait for another's messages", ("GET", "/v1/inbox/boss/wait")),
        ("claim another's messages", ("POST", "/v1/inbox/boss/claim", {})),
        ("acknowledge another's message", ("POST", f"{message}/ack", {"claim_owner": "boss"})),
        ("send in another's name", ("POST", "/v1/messages", {"to": "lead", "sender": "boss", "payload": 1})),
        ("send as the mesh", ("POST", "/v1/messages", {"to": "lead", "sender": "mesh", "payload": 1})),
        ("send to whom it may not", ("POST", "/v1/messages", {"to": "boss", "sender": _AGENT, "payload": 1})),
        ("name another agent", ("POST", "/v1/jobs/take", {"kinds": ["notes.*"]}, as_boss)),
        ("be seen as another", ("POST", "/v1/agents/boss/heartbeat", {})),
        ("take a job it may not take", ("POST", "/v1/jobs/take", {"kinds": ["deploy"]})),
        (_NARROWED, ("POST", "/v1/jobs/take", {"kinds": ["*"]})),
        ("report another's job", ("POST", f"{taken}/report", {**claim, "outcome": "succeeded"})),
        ("renew another's job", ("POST", f"{taken}/renew", claim)),
        ("write to another's log", ("POST", f"{taken}/log", {**claim, "text": "lie"})),
        ("leave an artifact", ("POST", f"{taken}/artifacts", {**claim, "name": "a", "text": "lie"})),
        ("abort another's job", ("POST", f"{waiting}/abort", {"reason": "mine"})),
        ("run a command", ("POST", "/v1/jobs", {"manifests": [{"command": ["id"], "timeout": 9}]})),
        ("schedule another kind", ("POST", "/v1/jobs", {"manifests": [{"kind": "deploy"}]})),
        ("raise its budget", ("PUT", "/v1/budgets", {"subject": "agent:coder", "budget": {"max_bu": 9999}})),
        ("add a cron", ("PUT", "/v1/crons/own", {"expression": "* * * * *", "manifest": notes})),
        ("remove a cron", ("DELETE", "/v1/crons/nightly")),
        ("add a rule", ("PUT", "/v1/rules/own", {"op_kind": "pushed", "manifest": notes})),
        ("pause a kind", ("POST", "/v1/kinds/deploy/pause", {})),
        ("change the tempo", ("PUT", "/v1/rhythm/policy", {"policy": policy})),
        ("declare an incident", ("PUT", "/v1/rhythm/incident", {"reason": "mine"})),
        ("drain a node", ("PUT", f"/v1/workers/{node}/drain", {})),
        ("remove a node", ("DELETE", f"/v1/nodes/{node}")),
        ("grant itself more", ("POST", "/v1/grants/issue", {"agent": _AGENT, "capabilities": ["*"]})),
        ("be admitted with its own key", ("POST", f"/v1/agents/{_AGENT}/admit", {"key": "ed25519:00"})),
        ("admit a node", ("POST", "/v1/nodes/evil/admit", {})),
        ("make the mesh trusting", ("PUT", "/v1/strict", {"strict": False})),
        ("become coordinator", ("PUT", "/v1/roles/coordinator", {"node": "evil"})),
        ("export the log", ("GET", "/v1/oplog/export")),
        ("read metrics", ("GET", "/metrics")),
        ("read the health of the node", ("GET", "/v1/health")),
        ("get a code for the console", ("POST", "/ui/codes", {"name": "boss"})),
        ("look for names", ("GET", "/v1/find?q=boss")),
        ("read what needs a person", ("GET", "/v1/attention")),
        ("listen to what needs a person", ("GET", "/v1/events?topics=attention")),
        ("draw all jobs", ("GET", "/v1/jobs/layout")),
        ("list all jobs", ("GET", "/v1/jobs/rows")),
        ("list all waiters", ("GET", "/v1/locks/waiters")),
        ("abort all jobs", ("POST", "/v1/jobs/abort", {"state": "pending"})),
        ("name another agent to tools", ("POST", "/mcp", {}, as_boss)),
        ("relay a message", ("POST", "/v1/a2a/deliver", {"messages": []})),
    ]  # fmt: skip


def _files(home: Path, database: Path) -> list[tuple[str, str]]:
    """All files of the node: its key, tokens and database are among them."""
    return [
        (f"read {path.name}", str(path)) for path in (database, *sorted(home.rglob("*"))) if path.is_file()
    ]


def _names(scene: _Scene) -> set[str]:
    return {name for name, _ in _attempts(scene, "any")}


async def _run(scene: _Scene, node: MeshNode, settings: Settings) -> dict[str, tuple[int, str]]:
    """Run the program as another user; return the answer to each attempt."""
    slot = slot_folder(settings.home_dir, node.identity.node_id).absolute()
    given = {
        "user": OTHER_USER,
        "socket": str(scene.folder / "agents.sock"),
        "private": str(slot / PRIVATE_SOCKET),
        "attempts": _attempts(scene, node.identity.node_id),
        "files": _files(settings.home_dir, settings.file_path),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate(json.dumps(given).encode())
    assert process.returncode == 0, output.decode()
    return {name: (status, said) for name, status, said in map(json.loads, output.splitlines())}


async def test_whatever_an_injected_agent_tries_is_refused_and_recorded(folder: Path) -> None:
    mesh = SharedMesh(FILE, folder, None, new_key(), has_relay=True)
    settings = mesh.settings(
        "ann",
        agent_socket=folder / "agents.sock",
        agent_socket_group=str(OTHER_USER),
        agent_uids=f"{OTHER_USER}={_AGENT}",
    )
    async with Mesh.open(settings) as node:
        scene = await _scene(node, folder)
        last = await node.oplog.last_id()
        answers = await _run(scene, node, settings)
        assert answers.pop(_CONTROL)[0] == 201, "it can't do what it may"
        assert answers.pop(_NARROWED) == (200, "[]"), "it was given a job of another kind"
        assert len(answers) >= 30
        allowed = {name: answer for name, answer in answers.items() if answer[0] != _REFUSED}
        assert allowed == {}
        accepted = [each for each in await node.oplog.after(last, 1_000, agent=_AGENT) if each.accepted]
        assert {each.kind for each in accepted} <= {ACCESS_REFUSED}
    async with Mesh.open(settings) as node:
        entries = await node.oplog.after(last, 1_000, agent=_AGENT, kind=ACCESS_REFUSED)
        recorded = [each for entry in entries for each in parse(entry.payload)["refused"]]
        refused = [
            name for name, (status, _) in answers.items() if status == _REFUSED and name in _names(scene)
        ]
        print(f"{len(refused)} requests were refused; recorded: {recorded}")
        assert sum(each["count"] for each in recorded) >= len(refused) >= 30
        await assert_whole(node)
