"""The relay of a node: takes what other nodes bring, and brings what is for them."""

from __future__ import annotations

from collections.abc import Callable

from vox_mesh.coordination.clock import MeshClock
from vox_mesh.http.access import Access
from vox_mesh.http.address import Address
from vox_mesh.http.courier import HttpCourier
from vox_mesh.http.deliver import Delivery
from vox_mesh.http.service import Service
from vox_mesh.messages.bus import Bus
from vox_mesh.messages.outbox import Outbox
from vox_mesh.messages.reception import WINDOW_MS, Reception
from vox_mesh.settings import Settings
from vox_mesh.store.store import Store


class Relay:
    """One end of the relay."""

    def __init__(
        self,
        settings: Settings,
        node_id: str,
        store: Store,
        bus: Bus,
        clock: MeshClock,
        monotonic: Callable[[], float],
    ) -> None:
        token = None if settings.token is None else settings.token.get_secret_value()
        address = Address.chosen(settings.control_addr, settings.bind, has_token=token is not None)
        # What is forgotten by then can't be told from what never came.
        window_ms = min(WINDOW_MS, round(settings.message_retention * 1_000))
        delivery = Delivery(node_id, Reception(store, bus, clock, window_ms, monotonic), Access(token))
        self.service = Service(address, [delivery.add_to])
        courier = HttpCourier(node_id, token)
        self._outbox = Outbox(
            courier,
            bus.whereabouts,
            bus.arrivals,
            monotonic=monotonic,
            spooling=store.is_spooling,
            is_busy=lambda: store.is_busy,
        )
        bus.relay_by(self._outbox)

    async def start(self) -> str:
        """Listen; the address that others are told."""
        return await self.service.start()

    async def stop(self) -> None:
        """Take and bring nothing more; what is under way here is finished."""
        try:
            await self._outbox.close()
        finally:
            await self.service.stop()
