"""The images and `compose.yaml`: what they name is there, and what they say agrees."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.deploy import command_lines, schemas
from tests.deploy.files import (
    DEPLOY,
    DOCKERFILES,
    ROOT,
    SOME_TOKEN,
    documents,
    instructions,
    texts,
    variables,
)
from tools.homes import FILE
from vox_mesh import Mesh, load_settings
from vox_mesh.node import MeshNode
from vox_mesh.settings import EXAMPLES

_COMPOSE: Final = DEPLOY / "compose.yaml"
_ARCHITECTURES: Final = re.compile(r"\b(x86[_-]64|amd64|aarch64|arm64|x64|--platform)\b")
_NODES: Final = ("node-1", "node-2", "node-3")


def compose() -> dict[str, Any]:
    """The project, its anchors followed."""
    [project] = documents(_COMPOSE)
    return project


def version() -> str:
    """The package's."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


async def control_address(mesh: MeshNode) -> str:
    """Where the only node of a mesh answers."""
    [node] = await mesh.nodes.all()
    assert node.control_addr is not None
    return node.control_addr


@pytest.mark.parametrize("path", [*texts()], ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_that_a_file_names_is_one_of_ours(path: Path) -> None:
    others = {"VOX_MESH_PORT", "VOX_CACHE_DIR"}  # what Kubernetes would set; where tools keep downloads
    assert variables(path.read_text()) - others <= {*EXAMPLES, "VOX_MESH_READ_TOKEN"}


@pytest.mark.parametrize("path", [*texts()], ids=lambda path: str(path.relative_to(DEPLOY)))
def test_nothing_is_made_for_one_architecture(path: Path) -> None:
    assert not _ARCHITECTURES.search(path.read_text())


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_copies_what_is_there_and_nothing_else_is_sent_to_be_built(dockerfile: Path) -> None:
    copied = [rest.split() for name, rest in instructions(dockerfile) if name == "COPY"]
    sources = {
        word
        for words in copied
        if not words[0].startswith("--from")
        for word in words[:-1]
        if not word.startswith("--")
    }
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
    ignored = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == sources
    assert not [r for r in rules[1:] if not r.startswith("!") and any(fnmatch.fnmatch(s, r) for s in sources)]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_runs_as_no_one_special_and_looks_after_its_health(dockerfile: Path) -> None:
    found = dict(instructions(dockerfile))
    user = found["USER"]
    assert int(user) > 0
    assert f"--uid {user} " in dict(instructions(dockerfile))["RUN"]
    assert "HEALTHCHECK" in found
    assert "curl" not in found["HEALTHCHECK"]
    assert found["VOLUME"] == found["WORKDIR"]


def test_the_image_of_a_node_runs_a_command_that_there_is_with_settings_that_are_good() -> None:
    found = dict(instructions(DOCKERFILES[0]))
    assert json.loads(found["ENTRYPOINT"]) == ["vox-mesh"]
    command_lines.check(json.loads(found["CMD"]))
    given = dict(re.findall(r"(VOX_\w+)=(\S+)", found["ENV"]))
    load_settings(_env_file=None, **given)
    assert given["VOX_MESH_BIND"].endswith(f":{found['EXPOSE']}")
    assert f":{found['EXPOSE']}/livez" in found["HEALTHCHECK"]
    assert given["VOX_MESH_HOME"] == found["VOLUME"]
    assert Path(given["VOX_DB_PATH"]).is_relative_to(found["VOLUME"])


async def test_the_health_check_tells_a_node_that_lives_from_one_that_does_not(tmp_path: Path) -> None:
    image = dict(instructions(DOCKERFILES[0]))
    _, program, code = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])

    async def ended(port: int) -> int:
        asked = code.replace(f":{image['EXPOSE']}/", f":{port}/")
        process = await asyncio.create_subprocess_exec(
            sys.executable, program, asked, stderr=asyncio.subprocess.DEVNULL
        )
        return await asyncio.wait_for(process.wait(), 60)

    async with Mesh.open(FILE.settings(tmp_path, None, http=True)) as mesh:
        port = urlsplit(await control_address(mesh)).port
        assert port is not None
        assert await ended(port) == 0
    assert await ended(port) != 0


def test_the_project_has_what_it_needs() -> None:
    project = compose()
    schemas.check(project, schemas.COMPOSE)
    assert {"sqld", *_NODES, "verify", "prometheus", "grafana"} == set(project["services"])
    for name, service in project["services"].items():
        for secret in service.get("secrets", []):
            assert secret in project["secrets"], name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = (DEPLOY / source).exists() if source.startswith(".") else source in project["volumes"]
            assert there, f"{name}: {volume}"
        if "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]) in DOCKERFILES
            assert service["image"].endswith(f":{version()}")
        else:
            assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "a version, not the latest"


def test_the_nodes_of_the_project_have_good_settings_and_each_its_own_name_and_volume() -> None:
    services = compose()["services"]
    image = dict(re.findall(r"(VOX_\w+)=(\S+)", dict(instructions(DOCKERFILES[0]))["ENV"]))
    port = dict(instructions(DOCKERFILES[0]))["EXPOSE"]
    for name in _NODES:
        node = services[name]
        secret = [key for key, value in node["environment"].items() if value.startswith("${")]
        assert sorted(secret) == [
            *("VOX_DB_TOKEN", "VOX_MESH_METRICS_TOKEN", "VOX_MESH_READ_TOKEN", "VOX_MESH_TOKEN")
        ]
        settings = load_settings(
            _env_file=None, **(image | node["environment"] | dict.fromkeys(secret, SOME_TOKEN))
        )
        assert settings.node_id == name
        assert settings.control_addr == f"http://{name}:{port}"
        assert node["volumes"] == [f"{name}:{image['VOX_MESH_HOME']}"]
        assert node["ports"][0].endswith(f":{port}")
        assert node["depends_on"] == {"sqld": {"condition": "service_healthy"}}
        database = urlsplit(settings.endpoint)
        assert (database.hostname, str(database.port)) == (
            "sqld",
            dict(instructions(DOCKERFILES[1]))["EXPOSE"],
        )
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len({port.rpartition(":")[0] for port in published}) == len(published)


def test_the_server_of_the_project_has_the_public_key_and_not_the_private_one() -> None:
    project = compose()
    assert project["services"]["sqld"]["environment"]["SQLD_KEY"] == "/run/secrets/sqld_key"
    assert project["secrets"]["sqld_key"]["file"].endswith(".pub.pem")


def test_the_page_makes_every_secret_of_the_project(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    [recipe] = re.findall(r"^```sh\n([^`]*?)^docker compose ", page, re.MULTILINE)
    (tmp_path / "deploy" / "secrets").mkdir(parents=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euc", recipe],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        check=True,
        timeout=60,
    )
    folder = tmp_path / "deploy"
    assert not list(folder.rglob("sqld.pem")), "the key that makes tokens is not next to the nodes"
    assert [mode(folder / name) for name in ("secrets", ".env")] == [0o700, 0o600]
    for secret in compose()["secrets"].values():
        made = folder / secret["file"]
        assert made.read_text().strip()
        assert mode(made) == 0o644, "users of the containers read it"
    given = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())
    assert set(re.findall(r"\$\{(\w+):", _COMPOSE.read_text())) == set(given)
    assert all(given.values())
    assert given["VOX_MESH_METRICS_TOKEN"] == (folder / "secrets" / "metrics_token").read_text().strip()


def mode(path: Path) -> int:
    """Who may do what with a file."""
    return path.stat().st_mode & 0o777


def test_every_command_that_a_file_tells_its_reader_to_use_is_there() -> None:
    mentioned_lines = [arguments for text in texts().values() for arguments in command_lines.mentioned(text)]
    assert ["token", "random"] in mentioned_lines
    for arguments in mentioned_lines:
        command_lines.check(arguments)


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    return asked.returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="docker compose is not installed")
def test_docker_takes_the_project() -> None:
    mesh = ("VOX_MESH_TOKEN", "VOX_MESH_READ_TOKEN", "VOX_MESH_METRICS_TOKEN")
    env = {**os.environ, **dict.fromkeys((*mesh, "VOX_DB_TOKEN", "GRAFANA_PASSWORD"), "t")}
    command = ["docker", "compose", "--file", str(_COMPOSE), "config", "--quiet"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
