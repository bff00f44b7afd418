"""The HTTP server of a node: all its endpoints, and the relay's outbox."""

from __future__ import annotations

from collections.abc import Callable

from vox_mesh.errors import BadSettings
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.api.api import Api
from vox_mesh.http.events import EventStream
from vox_mesh.http.health import Checks, HealthPages
from vox_mesh.http.metrics.collector import Measured
from vox_mesh.http.metrics.endpoint import Metrics
from vox_mesh.http.relay.client import HttpRelayClient
from vox_mesh.http.relay.endpoint import Delivery
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.http.service import Service
from vox_mesh.messages.relay_inbound import WINDOW_MS, Reception
from vox_mesh.messages.relay_outbound import Outbox
from vox_mesh.runtime.services import MeshServices
from vox_mesh.settings import Settings


class NodeServer:
    """Serves the API, receives messages from other nodes and delivers messages to them."""

    def __init__(
        self,
        settings: Settings,
        mesh: MeshServices,
        measured: Measured,
        checks: Checks,
        monotonic: Callable[[], float],
    ) -> None:
        token, read_token = _tokens(settings)
        own, store, messages = mesh.identity.node_id, mesh.store, mesh.messages
        address = ListenAddress.from_settings(
            settings.control_addr, settings.bind, has_token=token is not None
        )
        keys = None if token is None else relay_keys_of(mesh, token)
        access = Access(token, read_token, keys)
        # Older messages are pruned, so duplicates of them would seem new.
        window_ms = min(WINDOW_MS, round(settings.message_retention * 1_000))
        reception = Reception(store, messages, mesh.clock, window_ms, monotonic)
        self._events = EventStream(mesh, access)
        self._api = Api(mesh, access)
        self.service = Service(
            address,
            [
                Delivery(own, reception, access).add_to,
                HealthPages(checks, access).add_to,
                Metrics(measured, access, is_ready=lambda: all(check.is_ok for check in checks())).add_to,
                self._events.add_to,
                self._api.add_to,
            ],
            faults=store.faults,
        )
        self._outbox = Outbox(
            HttpRelayClient(own, keys),
            messages.directory,
            messages.relay_buffer,
            monotonic=monotonic,
            spooling=store.is_spooling,
            is_busy=lambda: store.is_busy,
            faults=store.faults,
        )
        messages.relay_by(self._outbox)

    async def start(self) -> str:
        """Start to listen; return the announced address."""
        return await self.service.start()

    def end_waiting(self) -> None:
        """End all event streams and waiting requests."""
        self._events.end()
        self._api.end_waiting()

    async def stop(self) -> None:
        """Stop receiving and delivering; running requests are finished."""
        try:
            await self._outbox.close()
        finally:
            self.end_waiting()
            await self.service.stop()


def relay_keys_of(mesh: MeshServices, token: str) -> RelayKeys:
    """Return the relay keys of a mesh, by its rhythm."""
    scope_id, repository_id, _ = mesh.store.writer_id
    return RelayKeys(
        token,
        (scope_id, repository_id),
        now_ms=lambda: mesh.clock.now_ms,
        window_at=lambda at_ms: mesh.rhythm.timeline.window_at(at_ms),
        revoke_after_bars=lambda: mesh.rhythm.policy.security.revoke_after_bars,
        look_at_clock=mesh.nodes.look_at_clock,
    )


def _tokens(settings: Settings) -> tuple[str | None, str | None]:
    token, read_token = (
        None if each is None else each.get_secret_value() for each in (settings.token, settings.read_token)
    )
    if read_token is not None and token in (None, read_token):
        raise BadSettings(
            "VOX_MESH_READ_TOKEN must be used with another VOX_MESH_TOKEN",
            hint="set VOX_MESH_TOKEN to a different value",
        )
    return token, read_token
