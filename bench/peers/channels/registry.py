"""The channels by their names."""

from __future__ import annotations

from typing import Final

from bench.peers.channels import jobs, messages
from bench.peers.channels.channel import ChannelService

MESSAGES: Final = "messages"
JOBS: Final = "jobs"

CHANNELS: Final[dict[str, dict[str, ChannelService]]] = {
    MESSAGES: {
        each.name: each
        for each in (messages.OURS_IN_FILE, messages.OURS_ON_SERVER, messages.REDIS, messages.NATS)
    },
    JOBS: {each.name: each for each in (jobs.OURS_IN_FILE, jobs.OURS_ON_SERVER, jobs.PROCRASTINATE)},
}
"""By what they bring, and by the name of the service."""
