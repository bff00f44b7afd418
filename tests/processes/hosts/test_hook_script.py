"""The script that hosts run: it always answers, in the form of its host, whatever is there to ask."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio

from tests.hosts.hooks.hosts import HOSTS, RECORDED, Host, payload
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.repositories import Repository
from tools.homes import FILE
from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.engine import FORMATS, engine_of
from vox_mesh.hosts.hooks.events import EventKind
from vox_mesh.hosts.hooks.script import SCRIPT
from vox_mesh.hosts.hooks.script import vox_mesh_hook as script
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.nodes.agent_token_file import agent_token_file
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PATIENCE_S: Final = 60.0
_PYTHON: Final = (sys.executable, "-IS", str(SCRIPT))


class Ended(NamedTuple):
    """How the script ended."""

    code: int | None
    out: str
    err: str

    @property
    def answer(self) -> Any:
        """The document that it printed, and nothing else."""
        assert self.code == 0, self
        assert self.err == "", self
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Home:
    """A home of a mesh, or what is said to be one, and the variables of the host."""

    path: Path
    project: Path
    variables: dict[str, str] = field(default_factory=dict)

    async def begin(self, host: str, *options: str) -> asyncio.subprocess.Process:
        """Start the script."""
        return await asyncio.create_subprocess_exec(
            *(*_PYTHON, host, "--home", str(self.path), "--project", str(self.project), *options),
            cwd=self.project,
            env={"PATH": os.environ["PATH"], "HOME": str(self.project.parent), **self.variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, host: str, raw: bytes, *options: str) -> Ended:
        """Run the script to its end."""
        process = await self.begin(host, *options)
        async with asyncio.timeout(_PATIENCE_S):
            out, err = await process.communicate(raw)
        return Ended(process.returncode, out.decode(), err.decode())

    async def ask(
        self, host: str, event: str, *options: str, file: Path | str = "", command: str = ""
    ) -> Any:
        """Send a recorded event; return the answer."""
        raw = payload(host, event, self.project, file=file, command=command)
        return (await self.run(host, json.dumps(raw).encode(), *options)).answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MeshNode]:
    """A node with its sockets."""
    shared = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key(), has_relay=True)
    async with Mesh.open(shared.settings("ann")) as node:
        yield node


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository."""
    folder = tmp_path / "project"
    folder.mkdir()
    Repository(folder, {"PATH": os.environ["PATH"]}).git("init", "--quiet")
    return folder


@pytest.fixture
def home(node: MeshNode, project: Path) -> Home:
    """The home of the node."""
    return Home(node._settings.home_dir, project, {"VOX_AGENT_ID": "bob"})


@pytest.fixture
def away(tmp_path: Path, project: Path) -> Home:
    """A home without a node."""
    (tmp_path / "vox" / "slots" / "1").mkdir(parents=True)
    return Home(tmp_path / "vox", project, {"VOX_AGENT_ID": "bob"})


@pytest.fixture(params=list(HOSTS))
def host(request: pytest.FixtureRequest) -> Host:
    """Each host in turn."""
    return HOSTS[request.param]


# --- with a node ---------------------------------------------------------------------------------------


async def test_it_passes_on_what_the_node_decides(node: MeshNode, home: Home, host: Host) -> None:
    held, free = f"{new_key()}.py", f"{new_key()}.py"
    await node.locks.acquire(f"file:{held}", agent="ann", ttl=60)
    denied = host.denied(await home.ask(host.name, "before_edit", file=home.project / held))
    assert '"ann"' in denied
    assert await home.ask(host.name, "before_edit", "--auto", file=home.project / free) == {}
    (lock,) = await node.locks.holders([f"file:{free}"])
    assert lock.holder_agent == "bob"
    assert await home.ask(host.name, "session_end") == {}
    assert await node.locks.holders([f"file:{free}"]) == []


@pytest.mark.parametrize(
    "agent", ["bob", "a.b_c-1", "bob smith", "../bob", "jürgen", "-x", "x" * 64, "x" * 65]
)
async def test_it_finds_the_token_where_the_package_keeps_it(agent: str, tmp_path: Path) -> None:
    assert script.token_file(str(tmp_path), agent) == str(agent_token_file(tmp_path, agent))


async def test_it_acts_by_the_token_of_its_agent(node: MeshNode, home: Home, tmp_path: Path) -> None:
    name, file = f"agent-{new_key().lower()}", f"{new_key()}.py"
    await node.grants.admit(name)
    await node.grants.issue(name, ["coder"])
    token = (await node.principals.tokens.issue(name, lasts="1h")).text
    (tmp_path / "token").write_text(f"{token}\n")
    own = home.path / "agents"
    own.mkdir(exist_ok=True)
    (own / f"{name}.token").write_text(token)
    for variables in (
        {"VOX_AGENT_TOKEN": token},
        {"VOX_AGENT_TOKEN_FILE": str(tmp_path / "token"), "VOX_AGENT_ID": "another"},
        {"VOX_AGENT_ID": name},
    ):
        asked = Home(home.path, home.project, variables)
        assert await asked.ask("claude", "before_edit", "--auto", file=home.project / file) == {}
        (lock,) = await node.locks.holders([f"file:{file}"])
        assert lock.holder_agent == name
        await node.locks.release_held(agent=name)
    wrong = Home(home.path, home.project, {"VOX_AGENT_TOKEN": "vxa1.wrong"})
    assert "vox-mesh setup" in HOSTS["claude"].note(
        await wrong.ask("claude", "before_edit", file=home.project / file)
    )


async def test_it_finds_a_node_by_its_address(node: MeshNode, project: Path) -> None:
    socket = node._settings.home_dir / "slots" / "ann" / "http.sock"
    found = Home(project / "none", project, {"VOX_MESH_NODE": f"unix:{socket}", "VOX_AGENT_ID": "bob"})
    assert '"bob"' in HOSTS["claude"].context(await found.ask("claude", "session_start"))
    url = node.presence.activity.control_addr
    over_tcp = Home(project / "none", project, {"VOX_MESH_NODE": str(url), "VOX_AGENT_ID": "bob"})
    assert "vox-mesh setup" in HOSTS["claude"].note(await over_tcp.ask("claude", "session_start"))


async def test_text_that_is_no_unicode_does_not_keep_it_from_checking(node: MeshNode, home: Home) -> None:
    held = f"{new_key()}.py"
    await node.locks.acquire(f"file:{held}", agent="ann", ttl=60)
    raw = json.dumps(payload("claude", "before_edit", home.project, file=home.project / held)).encode()
    for wrong in (b'"\\ud800"', b'"caf\xe9"'):
        ended = await home.run("claude", raw.replace(b'"new_string": "b"', b'"new_string": ' + wrong))
        assert '"ann"' in HOSTS["claude"].denied(ended.answer)


async def test_a_huge_event_is_shortened_and_checked(node: MeshNode, home: Home) -> None:
    held = f"{new_key()}.py"
    await node.locks.acquire(f"file:{held}", agent="ann", ttl=60)
    write = payload("claude", "before_write", home.project, file=home.project / held)
    write["tool_input"]["content"] = "x" * (3 * 2**20)
    assert '"ann"' in HOSTS["claude"].denied((await home.run("claude", json.dumps(write).encode())).answer)
    patch = payload("codex", "before_edit", home.project, file=home.project / held)
    lines = "+x\n" * 2**20
    text = f"*** Begin Patch\n*** Add File: other.py\n{lines}*** Update File: {held}\n*** End Patch"
    patch["tool_input"]["command"] = text
    assert '"ann"' in HOSTS["codex"].denied((await home.run("codex", json.dumps(patch).encode())).answer)


async def test_a_waiter_ends_with_2_and_the_text_of_the_mail(node: MeshNode, home: Home) -> None:
    name = f"bob-{new_key().lower()}"
    asked = Home(home.path, home.project, {"VOX_AGENT_ID": name})
    raw = json.dumps(payload("claude", "stop", home.project)).encode()
    async with _waiting(node, asked, name, raw) as waiter:
        await node.messages.send(name, "wake up\nnow", sender="ann")
        async with asyncio.timeout(_PATIENCE_S):
            out, err = await waiter.communicate()
    assert (waiter.returncode, out) == (2, b"")
    assert "wake up\nnow" in err.decode()
    assert 'from="ann"' in err.decode()


async def test_a_waiter_ends_with_0_when_a_newer_one_comes(node: MeshNode, home: Home) -> None:
    name = f"bob-{new_key().lower()}"
    asked = Home(home.path, home.project, {"VOX_AGENT_ID": name})
    raw = json.dumps(payload("claude", "stop", home.project)).encode()
    async with _waiting(node, asked, name, raw) as elder, _waiting(node, asked, name, raw) as newer:
        async with asyncio.timeout(_PATIENCE_S):
            assert await elder.wait() == 0
        assert newer.returncode is None


@asynccontextmanager
async def _waiting(
    node: MeshNode, home: Home, agent: str, raw: bytes
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A waiter of an agent that the node knows of."""
    before = engine_of(node)._waiters._superseded.get(agent)
    process = await home.begin("claude", "--wait")
    try:
        assert process.stdin is not None
        process.stdin.write(raw)
        process.stdin.close()
        async with asyncio.timeout(_PATIENCE_S):
            while engine_of(node)._waiters._superseded.get(agent) in (None, before):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# --- without one ---------------------------------------------------------------------------------------


async def test_without_a_node_it_says_so_and_lets_the_agent_go_on(away: Home, host: Host) -> None:
    for asked in (away, Home(away.path / "none", away.project, away.variables)):
        answer = await asked.ask(host.name, "before_edit", file=away.project / "x.py")
        assert not host.denied(answer)
        assert "locks not checked" in host.note(answer)
        for event in ("prompt", "after_tool", "stop", "session_end"):
            assert await asked.ask(host.name, event) == {}


async def test_without_a_node_a_strict_hook_denies_edits_and_commits_only(away: Home, host: Host) -> None:
    denied = await away.ask(host.name, "before_edit", "--strict", file=away.project / "x.py")
    assert "locks not checked" in host.denied(denied)
    commit = await away.ask(host.name, "before_shell", "--strict", command="git commit -m x")
    assert "locks not checked" in host.denied(commit)
    assert not host.denied(await away.ask(host.name, "before_shell", "--strict", command="ls"))
    for event in ("session_start", "prompt", "after_tool", "stop", "session_end"):
        assert not host.denied(await away.ask(host.name, event, "--strict"))


async def test_a_node_that_does_not_answer_is_not_waited_for(away: Home) -> None:
    silent = await asyncio.start_unix_server(_say_nothing, away.path / "slots" / "1" / "http.sock")
    async with silent:
        answer = await away.ask("claude", "before_edit", "--strict", file=away.project / "x.py")
        assert "locks not checked" in HOSTS["claude"].denied(answer)


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


_BROKEN: Final = (
    *(b"", b"HTTP/1.1 200 OK\r\n\r\n", b"\x00\xff" * 1_000),
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
)


@pytest.mark.parametrize("said", _BROKEN, ids=range(len(_BROKEN)))
async def test_a_broken_answer_counts_as_none(away: Home, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, away.path / "slots" / "1" / "http.sock"):
        found = await away.ask("claude", "before_edit", file=away.project / "x.py")
        assert "locks not checked" in HOSTS["claude"].note(found)


_GARBAGE: Final = (b"", b"\xff\xfe", b"[]", b"nul", b"[" * 100_000)


@pytest.mark.parametrize("raw", _GARBAGE, ids=range(len(_GARBAGE)))
async def test_garbage_is_answered_in_the_form_of_the_host(away: Home, raw: bytes, host: Host) -> None:
    assert "locks not checked" in host.note((await away.run(host.name, raw)).answer)
    assert "locks not checked" in host.denied((await away.run(host.name, raw, "--strict")).answer)


@pytest.mark.parametrize(
    "arguments", [(), ("--home",), ("emacs",), ("claude", "--home", "\n"), ("--x", "claude")]
)
async def test_wrong_arguments_do_not_block_the_agent(project: Path, arguments: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*_PYTHON, *arguments),
        env={},
        cwd=project,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(b"{}")
    assert process.returncode == 0
    assert isinstance(json.loads(out), dict)


async def test_an_interrupt_is_answered_with_nothing(away: Home) -> None:
    process = await away.begin("claude")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"{" * 400_000)  # more than the pipe and the buffer hold: it has begun to read
    await process.stdin.drain()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(_PATIENCE_S):
        out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)) == (0, {})


async def test_a_waiter_without_a_mesh_ends_at_once(away: Home) -> None:
    gone = Home(away.path / "none", away.project, away.variables)
    assert (await gone.run("claude", b"{}", "--wait")).answer == {}


# --- the transcript ------------------------------------------------------------------------------------


async def test_the_tokens_of_a_transcript_are_charged(node: MeshNode, home: Home) -> None:
    name = f"bob-{new_key().lower()}"
    asked = Home(home.path, home.project, {"VOX_AGENT_ID": name})
    lines = [
        {"message": {"id": "1", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"message": {"id": "1", "model": "m", "usage": {"input_tokens": 10, "output_tokens": 5}}},
        {
            "message": {
                "id": "2",
                "model": "m",
                "usage": {"input_tokens": 1, "cache_creation_input_tokens": 4},
            }
        },
        {"message": {"id": "3", "model": "<synthetic>", "usage": {"input_tokens": 99}}},
        {"message": {"id": "4", "model": "n", "usage": {"input_tokens": "x", "output_tokens": 7}}},
        {"message": "usage"},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"usage" broken'
    inside, outside = home.project / "t.jsonl", Path("/proc/self/status")
    inside.write_text(text)
    raw = payload("claude", "session_end", home.project)
    for path in (outside, inside):
        raw["transcript_path"] = str(path)
        assert (await asked.run("claude", json.dumps(raw).encode())).answer == {}
    spent = {each.model: each.today for each in await node.rhythm.tokens.of_agent(name, 0)}
    assert {model: (each.input_tokens, each.output_tokens) for model, each in spent.items()} == {
        "m": (15, 5),
        "n": (0, 7),
    }


async def test_a_transcript_outside_of_the_home_of_the_user_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    line = json.dumps({"message": {"id": "1", "model": "m", "usage": {"input_tokens": 9}}})
    (tmp_path / "t.jsonl").write_text(line)
    (tmp_path / "home" / "t.jsonl").symlink_to(tmp_path / "t.jsonl")
    assert script.usage_of(str(tmp_path / "t.jsonl")) is None
    assert script.usage_of(str(tmp_path / "home" / "t.jsonl")) is None
    (tmp_path / "home" / "own.jsonl").write_text(line)
    assert script.usage_of(str(tmp_path / "home" / "own.jsonl")) is not None


# --- the same as the node ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "event"), RECORDED, ids="-".join)
async def test_it_tells_events_apart_as_the_node_does(name: str, event: str) -> None:
    for command in ("git commit -m x", "ls"):
        raw = payload(name, event, Path("/p"), file="/p/x.py", command=command)
        kind = FORMATS[name].parse(raw).kind
        is_before = kind is EventKind.BEFORE_EDIT or (kind is EventKind.BEFORE_SHELL and command != "ls")
        if kind is not EventKind.SESSION_START:  # not every start of a session is worth a note
            assert script.concern(raw) == ("before" if is_before else "")


async def test_it_answers_in_the_forms_of_the_node(host: Host) -> None:
    event = FORMATS[host.name].parse(payload(host.name, "before_edit", Path("/p"), file="/p/x.py"))
    render = FORMATS[host.name].render
    assert script.denial(host.name, "why") == render(event, HookDecision(denied="why"))
    assert script.note(host.name, "why", "before") == render(event, HookDecision(note="why"))


async def test_it_runs_on_old_interpreters_and_imports_nothing_else() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 9))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    of_types = {"collections.abc", "typing"}  # read by checkers only
    own = {"__future__", "_signal", "_socket", "hashlib", "json", "os", "signal", "socket", "sys", "time"}
    assert imported - of_types == own
