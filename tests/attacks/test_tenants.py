"""Tenants: a namespace with a key of its own is a boundary; a scope and a claim in a token are none."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tools.homes import FILE, MESH, MESH_HTTP, MESH_REPLICA, HomeCase
from tools.sqld import Server, free_port
from vox_mesh import Mesh, Settings, Statement
from vox_mesh.errors import MeshError, Refused, Unauthorized
from vox_mesh.model.base.keys import SigningKey, public_pem, signed_token
from vox_mesh.nodes.key_file import new_key
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.replica import wire

_SECRET: Final = "what-only-globex-may-know"


@dataclass
class Tenants:
    """A server with a namespace for each of two tenants."""

    server: Server
    keys: dict[str, SigningKey]

    def token(self, tenant: str) -> str:
        """Return a token of a tenant's own key, or of the server's."""
        own = self.keys.get(tenant)
        return self.server.token if own is None else signed_token(own, {"a": "rw"})

    def settings(self, case: HomeCase, folder: Path, tenant: str, **more: Any) -> Settings:
        """Return the settings of a tenant's node. The scope is the same for all."""
        url = f"http://{tenant}.localhost:{self.server.port}"
        values = {
            "db_url": url,
            "db_token": self.token(tenant),
            "db_allow_plaintext": True,
            "scope_id": "one",
        }
        return case.settings(folder / tenant, self.server, **(values | more))

    def streamed(self, tenant: str, token: str) -> bytes:
        """Return what the replication service sends of a namespace to the holder of a token."""
        namespace = base64.b64encode(tenant.encode()).rstrip(b"=").decode()
        headers = {
            "content-type": "application/grpc-web",
            "authorization": f"Bearer {token}",
            "x-namespace-bin": namespace,
        }
        url = f"{self.server.url}/wal_log.ReplicationLog"
        answer = httpx.post(f"{url}/Hello", headers=headers, content=wire.request(1)).content
        if not answer:
            return b""
        size = int.from_bytes(answer[1:5], "big")
        headers["x-session-token"] = wire.hello(memoryview(answer)[5 : 5 + size]).session
        return httpx.post(f"{url}/BatchLogEntries", headers=headers, content=wire.request(1)).content


@pytest.fixture(scope="module")
def tenants() -> Iterator[Tenants]:
    """The tenants acme and globex with keys of their own; initech uses the key of the server."""
    admin = free_port()
    flags = ("--enable-namespaces", "--admin-listen-addr", f"127.0.0.1:{admin}")
    with Server(more_flags=flags) as server:
        keys = {name: SigningKey(new_key()) for name in ("acme", "globex")}
        bodies: dict[str, dict[str, str]] = {
            name: {"jwt_key": public_pem(key).decode()} for name, key in keys.items()
        }
        for name, body in {**bodies, "initech": {}}.items():
            made = httpx.post(f"http://127.0.0.1:{admin}/v1/namespaces/{name}/create", json=body)
            assert made.status_code == 200, made.text
        yield Tenants(server, keys)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names under localhost are this machine's, also where the system does not know that."""
    resolve = socket.getaddrinfo

    def local(host: Any, *args: Any, **options: Any) -> Any:
        is_tenant = isinstance(host, str) and host.endswith(".localhost")
        return resolve("127.0.0.1" if is_tenant else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", local)


async def fails(settings: Settings, sql: str, error: type[MeshError]) -> None:
    """The server refuses a query with these settings."""
    engine = await open_engine(settings)
    try:
        with pytest.raises(error):
            await engine.query(Statement(sql))
    finally:
        await engine.close()


# --- namespaces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [MESH, MESH_HTTP], ids=str)
async def test_tenants_with_keys_of_their_own_share_a_server_and_nothing_else(
    tenants: Tenants, tmp_path: Path, case: HomeCase
) -> None:
    async with (
        Mesh.open(tenants.settings(case, tmp_path, "acme")) as acme,
        Mesh.open(tenants.settings(case, tmp_path, "globex")) as globex,
    ):
        await globex.messages.send("bob", _SECRET, sender="ada")
        assert await acme.messages.inbox("bob") == []
        assert [each.body for each in await globex.messages.inbox("bob")][:1] == [_SECRET]
    await fails(tenants.settings(case, tmp_path, "acme"), "ATTACH DATABASE globex AS other", MeshError)
    crossed = tenants.settings(case, tmp_path, "globex", db_token=tenants.token("acme"))
    await fails(crossed, "SELECT 1", Unauthorized)


async def test_a_tenant_s_token_streams_no_log_of_another(tenants: Tenants, tmp_path: Path) -> None:
    async with Mesh.open(tenants.settings(MESH, tmp_path, "globex")) as globex:
        await globex.messages.send("bob", _SECRET, sender="ada")
    assert _SECRET.encode() in tenants.streamed("globex", tenants.token("globex"))
    for token in (tenants.token("acme"), tenants.server.token):
        assert tenants.streamed("globex", token) == b""


async def test_a_claim_for_one_namespace_does_not_close_the_log_of_another(
    tenants: Tenants, tmp_path: Path
) -> None:
    """What the server does not promise: therefore each namespace needs a key of its own."""
    token = tenants.server.token_with({"p": {"rw": {"ns": ["initech"]}}})
    async with Mesh.open(tenants.settings(MESH, tmp_path, "initech", db_token=token)) as initech:
        await initech.messages.send("bob", _SECRET, sender="ada")
    limits: list[dict[str, object]] = [{"p": {"rw": {"ns": ["acme"]}}}, {"a": "rw", "id": "acme"}]
    for claims in limits:
        other = tenants.server.token_with(claims)
        await fails(tenants.settings(MESH, tmp_path, "initech", db_token=other), "SELECT 1", MeshError)
        assert _SECRET.encode() in tenants.streamed("initech", other)


async def test_a_replica_never_follows_the_default_namespace_for_a_tenant(
    tenants: Tenants, tmp_path: Path
) -> None:
    async with Mesh.open(tenants.settings(MESH_REPLICA, tmp_path, "acme")) as acme:
        sent = await acme.messages.send("carol", "hello", sender="ada")
        assert [each.message_uuid for each in await acme.messages.inbox("carol")] == [sent.message_uuid]


# --- scopes --------------------------------------------------------------------------------------


async def test_a_scope_separates_names_and_not_tenants(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="acme")
    elsewhere = settings.model_copy(update={"scope_id": "globex", "home_dir": tmp_path / "other"})
    async with Mesh.open(settings) as acme, Mesh.open(elsewhere) as globex:
        await globex.messages.send("bob", _SECRET, sender="ada")
        assert await acme.messages.inbox("bob") == []
        rows = await acme.store.read("SELECT scope_id FROM a2a_messages")  # every credential reads all rows
        assert [row["scope_id"] for row in rows] == ["globex"]


async def test_a_mesh_is_opened_once_and_its_ownership_can_t_be_claimed_again(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="acme")
    late = settings.model_copy(update={"home_dir": tmp_path / "late"})
    async with Mesh.open(settings) as first, Mesh.open(late) as second:
        owner = await second.roles.owner()
        assert owner is not None
        assert owner.node_id == first.identity.node_id
        with pytest.raises(Refused, match="mesh_has_an_owner"):
            await second.roles.initialise()
        assert await first.roles.owner() == owner
