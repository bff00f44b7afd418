"""The nightly look at the op log: a node is asked to, and its metrics tell what it found."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import httpx

from tests.deploy.files import DEPLOY, DOCKERFILES, ROOT, instructions
from tests.deploy.test_containers import compose, control_address
from tests.support.messages.messaging import write
from tests.support.nodes.scraping import Scrape
from tools.homes import FILE
from tools.sqld import free_port
from vox_mesh import Mesh

_SCRIPT: Final = DEPLOY / "verify_log.py"
_TOKENS: Final = {"token": "a-token-that-is-for-everything", "read_token": "a-token-that-is-for-reading-only"}
_TIMEOUT_S: Final = 60.0


class Verified(NamedTuple):
    """How the script ended."""

    code: int | None
    out: str
    err: str


async def verified(address: str | None, token: str = _TOKENS["read_token"], **variables: str) -> Verified:
    """Run the script, which knows nothing else."""
    env = {"VOX_MESH_READ_TOKEN": token, **variables} | (
        {} if address is None else {"VOX_MESH_CONTROL_ADDR": address}
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", _SCRIPT, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    return Verified(process.returncode, out.decode(), err.decode())


def verify_command() -> str:
    """Where the image has the script."""
    [(source, folder)] = [
        rest.split() for name, rest in instructions(DOCKERFILES[0]) if name == "COPY" and _SCRIPT.name in rest
    ]
    assert ROOT / source == _SCRIPT
    return str(PurePosixPath(folder, _SCRIPT.name))


async def test_a_log_that_was_changed_is_reported_by_the_node_that_was_asked(tmp_path: Path) -> None:
    async with Mesh.open(FILE.settings(tmp_path, None, http=True, tick="1h", **_TOKENS)) as mesh:
        address = await control_address(mesh)
        headers = {"Authorization": f"Bearer {_TOKENS['read_token']}"}
        async with httpx.AsyncClient(
            base_url=address, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        ) as client:

            async def failures() -> float | None:
                answer = (await client.get("/metrics")).raise_for_status()
                return Scrape(answer.text).get("vox_chain_verify_failures_total")

            await mesh.jobs.schedule("work")
            assert await verified(address) == (0, "chains: 1, broken: 0\n", "")
            assert await failures() == 0
            await write(mesh, "UPDATE agent_oplog SET payload = '{}' WHERE kind = 'ScheduleJob' AND ?1 <> ?2")
            found = await verified(address)
            assert (found.code, found.out) == (1, "chains: 1, broken: 1\n")
            assert found.err.startswith(f"verify: {mesh.identity.chain}, entry ")
            assert await failures() == 1


async def test_the_token_may_be_a_credential(tmp_path: Path) -> None:
    (tmp_path / "VOX_MESH_READ_TOKEN").write_text(_TOKENS["read_token"] + "\n")
    async with Mesh.open(FILE.settings(tmp_path, None, http=True, **_TOKENS)) as mesh:
        address = await control_address(mesh)
        found = await verified(address, "wrong", CREDENTIALS_DIRECTORY=str(tmp_path))
    assert (found.code, found.err) == (0, "")


async def test_a_node_that_cant_be_asked_is_no_broken_log(tmp_path: Path) -> None:
    assert (await verified(None)).code == 2
    assert (await verified(f"http://127.0.0.1:{free_port()}")).code == 3
    async with Mesh.open(FILE.settings(tmp_path, None, http=True, **_TOKENS)) as mesh:
        refused = await verified(await control_address(mesh), "another")
    assert refused.code == 3
    assert "401" in refused.err
    assert refused.err.count("\n") == 1


def test_the_project_has_the_log_verified_by_one_of_its_nodes() -> None:
    services = compose()["services"]
    verify = services["verify"]
    assert verify["image"] == services["node-1"]["image"]
    assert verify_command() in verify["entrypoint"][-1]
    for name, value in verify["environment"].items():
        assert services["node-1"]["environment"][name] == value
