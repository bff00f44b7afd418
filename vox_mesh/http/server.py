"""The HTTP server of a node: all its endpoints, and the relay's outbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.admission import Admission
from vox_mesh.http.agent_socket import agent_socket_of
from vox_mesh.http.api.api import Api
from vox_mesh.http.api.performer import Performer
from vox_mesh.http.artifact_client import HttpArtifactSource
from vox_mesh.http.console.authenticator import SessionAuthenticator
from vox_mesh.http.console.endpoint import ConsoleEndpoint
from vox_mesh.http.console.peers import ConsolePeers
from vox_mesh.http.console.sessions import ConsoleSessions
from vox_mesh.http.events.stream import EventStream
from vox_mesh.http.health import HealthPages
from vox_mesh.http.limits import Quotas, RefusalBrake
from vox_mesh.http.local_socket import LocalSocket
from vox_mesh.http.mcp.endpoint import McpEndpoint
from vox_mesh.http.metrics.collector import Measured
from vox_mesh.http.metrics.endpoint import Metrics
from vox_mesh.http.principals.authenticator import AgentAuthenticator
from vox_mesh.http.principals.refusals import RefusalLog
from vox_mesh.http.relay.client import HttpRelayClient
from vox_mesh.http.relay.endpoint import Delivery
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.http.service import Service
from vox_mesh.messages.relay_inbound import WINDOW_MS, Reception
from vox_mesh.messages.relay_outbound import Outbox
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.base.shared_tokens import token_id
from vox_mesh.model.nodes.liveness import ServiceFigures
from vox_mesh.model.principals.request_signature import Audience
from vox_mesh.nodes.home_token import load_or_create_token
from vox_mesh.oplog.refusals import record_refusals
from vox_mesh.runtime.health import Health
from vox_mesh.runtime.services import MeshServices
from vox_mesh.settings import Settings
from vox_mesh.store.slots import folder_of_slot
from vox_mesh.store.watch.file_events import has_file_events


class NodeServer:
    """Serves the API, receives messages from other nodes and delivers messages to them."""

    def __init__(
        self,
        settings: Settings,
        mesh: MeshServices,
        measured: Measured,
        health: Health,
        monotonic: Callable[[], float],
    ) -> None:
        checks, health.service = health.checks, lambda: self.figures
        tokens = tokens_of(settings)
        own, store, messages = mesh.identity.node_id, mesh.store, mesh.messages
        address = ListenAddress.from_settings(
            settings.control_addr, settings.bind, has_token=settings.token is not None
        )
        keys = relay_keys_of(mesh, tokens.full)
        self._agents = agents_of(mesh)
        sessions = None
        if settings.ui:
            sessions = SessionAuthenticator(ConsoleSessions(lambda: mesh.clock.now_ms), address.hosts)
        access = Access(tokens.full, tokens.read, keys, tokens.metrics, self._agents, sessions)
        self.token_id = token_id(tokens.full, *store.mesh_id)
        """The public name of the token: nodes that announce the same one can relay to each other."""

        # Older messages are pruned, so duplicates of them would seem new.
        window_ms = min(WINDOW_MS, round(settings.message_retention * 1_000))
        reception = Reception(store, messages, mesh.clock, window_ms, monotonic)
        admission = Admission()
        self._events = EventStream(mesh, access, admission)
        quotas = Quotas(settings.rate_limit, settings.open_limit, monotonic)
        self._performer = Performer(mesh, access, quotas, admission)
        self._mcp = McpEndpoint(self._performer, address.hosts)
        self._metrics = Metrics(
            measured,
            access,
            is_ready=lambda: all(check.is_ok for check in checks()),
            admission=admission,
        )
        self._console = None
        if sessions is not None:
            peers = ConsolePeers(mesh, monotonic)
            self._console = ConsoleEndpoint(mesh, access, sessions, peers, lambda: self.service.browser_url)
        self.service = Service(
            address,
            [
                Delivery(own, reception, access).add_to,
                HealthPages(checks, access).add_to,
                self._metrics.add_to,
                self._events.add_to,
                Api(self._performer).add_to,
                self._mcp.add_to,
                *([] if self._console is None else [self._console.add_to]),
                RefusalBrake().add_to,
            ],
            faults=store.faults,
            local=_local_socket(settings, store.slot_name),
            agents=agent_socket_of(settings),
        )
        messages.directory.token_id = self.token_id
        self._outbox = Outbox(
            HttpRelayClient(own, keys, messages.sign_order),
            messages.directory,
            messages.relay_buffer,
            monotonic=monotonic,
            spooling=store.is_spooling,
            is_busy=lambda: store.is_busy,
            is_followed=store.backend is Backend.FILE and has_file_events(),
            faults=store.faults,
        )
        messages.relay_by(self._outbox)
        self.artifact_source = HttpArtifactSource(messages.directory, keys)
        """Where the files of other nodes are read."""

    async def start(self) -> str:
        """Start to listen; return the announced address."""
        with suppress(MeshError):  # then the first request of an agent reads it
            await self._agents.known.refresh()
        return await self.service.start()

    @property
    def figures(self) -> ServiceFigures:
        """What the service knows of itself."""
        return ServiceFigures(self._events.stream_count, self._metrics.request_seconds)

    def end_waiting(self) -> None:
        """End all event streams, waiting requests and sessions of the console."""
        if self._console is not None:
            self._console.end()
        self._events.end()
        self._performer.end_waiting()
        self._mcp.end()

    async def stop(self) -> None:
        """Stop receiving and delivering; running requests are finished."""
        try:
            await self._outbox.close()
        finally:
            self.end_waiting()
            await self.service.stop()
            await self._mcp.stop()
            await self._agents.refusals.close()


def agents_of(mesh: MeshServices) -> AgentAuthenticator:
    """Return what authenticates the agents of a mesh."""
    scope_id, repository_id, _ = mesh.store.writer_id
    return AgentAuthenticator(
        Audience(scope_id, repository_id, mesh.identity.node_id),
        mesh.principals.known,
        RefusalLog(partial(record_refusals, mesh.store)),
        mesh.principals.bearers,
        mesh.principals.tokens,
        now_ms=lambda: mesh.clock.now_ms,
    )


def relay_keys_of(mesh: MeshServices, token: str) -> RelayKeys:
    """Return the relay keys of a mesh, by its rhythm."""
    scope_id, repository_id, _ = mesh.store.writer_id
    return RelayKeys(
        token,
        (scope_id, repository_id),
        now_ms=lambda: mesh.clock.now_ms,
        window_at=lambda at_ms: mesh.rhythm.timeline.window_at(at_ms),
        revoke_after_bars=lambda: mesh.rhythm.policy.security.revoke_after_bars,
        check_clock=mesh.nodes.check_clock,
    )


class Tokens(NamedTuple):
    """The tokens of a service."""

    full: str
    read: str | None
    metrics: str | None


def tokens_of(settings: Settings) -> Tokens:
    """Return the tokens; without VOX_MESH_TOKEN, the token of the home, which is made at the first start."""
    given = (settings.token, settings.read_token, settings.metrics_token)
    full, read, metrics = (None if each is None else each.get_secret_value() for each in given)
    full = full or load_or_create_token(settings.home_dir)
    distinct = [each for each in (full, read, metrics) if each is not None]
    if len(set(distinct)) < len(distinct):
        raise BadSettings(
            "VOX_MESH_TOKEN, VOX_MESH_READ_TOKEN and VOX_MESH_METRICS_TOKEN must have different values",
            hint="make each with `vox-mesh token random`",
        )
    return Tokens(full, read, metrics)


def _local_socket(settings: Settings, slot_name: str | None) -> LocalSocket | None:
    return None if slot_name is None else LocalSocket(folder_of_slot(settings.home_dir, slot_name))
