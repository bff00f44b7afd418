"""The server's SQL functions for files: no token can use them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tools.install_sqld import extensions
from tools.sqld import Server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with the extension."""
    with Server() as server:
        yield server


def _ask(server: Server, token: str, *statements: str) -> list[dict[str, Any]]:
    """Run statements over HTTP and return their results."""
    requests = [{"type": "execute", "stmt": {"sql": sql}} for sql in statements]
    answer = httpx.post(
        f"{server.url}/v2/pipeline",
        headers={"Authorization": f"Bearer {token}"},
        json={"requests": [*requests, {"type": "close"}]},
    )
    results: list[dict[str, Any]] = answer.json()["results"]
    return results[:-1]


def _attempts(folder: Path) -> dict[str, str]:
    """Return statements that reach files, each with the file that it would create or read."""
    return {
        "writefile": f"SELECT writefile('{folder}/written', 'x')",
        "writefile with a mode": f"SELECT writefile('{folder}/written', 'x', 493)",
        "readfile": "SELECT readfile('/etc/hostname')",
        "lsmode": "SELECT lsmode(33188)",
        "fsdir": "SELECT name FROM fsdir('/etc')",
        "attach": f"SELECT sha3_query('ATTACH ''{folder}/attached'' AS a')",
        "pragma": "SELECT sha3_query('PRAGMA query_only = 0')",
        "pages": "SELECT data FROM sqlite_dbpage",
    }


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_no_token_reaches_files_over_http(guarded: Server, tmp_path: Path, access: str) -> None:
    for name, sql in _attempts(tmp_path).items():
        (result,) = _ask(guarded, guarded.token_with({"a": access}), sql)
        assert result["type"] == "error", name
    assert list(tmp_path.iterdir()) == []


def test_no_token_reaches_files_over_a_websocket(guarded: Server, tmp_path: Path) -> None:
    asyncio.run(_attempt_over_websocket(guarded, tmp_path))
    assert list(tmp_path.iterdir()) == []


async def _attempt_over_websocket(guarded: Server, folder: Path) -> None:
    hello = {"type": "hello", "jwt": guarded.token_with({"a": "ro"})}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(guarded.url.replace("http", "ws"), protocols=["hrana2"]) as socket,
    ):
        await socket.send_json(hello)
        assert (await socket.receive_json())["type"] == "hello_ok"
        opened = {"type": "open_stream", "stream_id": 0}
        await socket.send_json({"type": "request", "request_id": 0, "request": opened})
        assert (await socket.receive_json())["type"] == "response_ok"
        for number, (name, sql) in enumerate(_attempts(folder).items(), start=1):
            run = {"type": "execute", "stream_id": 0, "stmt": {"sql": sql, "want_rows": True}}
            await socket.send_json({"type": "request", "request_id": number, "request": run})
            assert (await socket.receive_json())["type"] == "response_error", name


def test_no_trigger_or_view_reaches_files(guarded: Server, tmp_path: Path) -> None:
    target = tmp_path / "planted"
    _ask(
        guarded,
        guarded.token,
        "CREATE TABLE IF NOT EXISTS bait (x)",
        f"CREATE TRIGGER planted AFTER INSERT ON bait BEGIN SELECT writefile('{target}', 'x'); END",
        f"CREATE VIEW shown AS SELECT writefile('{target}', 'x') AS x",
    )
    results = _ask(guarded, guarded.token, "INSERT INTO bait VALUES (1)", "SELECT x FROM shown")
    assert [result["type"] for result in results] == ["error", "error"]
    assert not target.exists()


def test_a_server_does_not_start_with_an_extension_that_was_changed(tmp_path: Path) -> None:
    changed = tmp_path / "extensions"
    shutil.copytree(extensions(), changed)
    with (changed / "no_file_access.so").open("ab") as file:
        file.write(b"more")
    server = Server(has_file_access=True, more_flags=("--extensions-path", str(changed)))
    with pytest.raises(RuntimeError, match="did not start"):
        server.start()
