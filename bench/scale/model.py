"""The model of one server: how many agents it carries, and what an agent costs in a month."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from bench.scale.inputs import IDLE, JOB, LOCK, MESSAGE, Inputs, OperationCost

MONTH_S: Final = 30 * 86_400
BUSY: Final = 0.5
"""The share of a core at which the wait for it, by M/D/1, is still half as long as the work itself."""

MAX_PUSHED: Final = 100e6
"""The bytes a second that a server may send: most of a network of 1 Gbit/s."""

_OPERATIONS: Final = (JOB, MESSAGE, LOCK)


@dataclass(frozen=True, slots=True)
class Rates:
    """What an agent does in an hour, and how many agents share a node."""

    name: str
    jobs: float
    messages: float
    lock_pairs: float
    agents_per_node: int = 50

    @property
    def per_s(self) -> dict[str, float]:
        """Return the operations of an agent in a second."""
        per_hour = zip(_OPERATIONS, (self.jobs, self.messages, self.lock_pairs), strict=True)
        return {name: count / 3_600 for name, count in per_hour}


CODING: Final = Rates("coding agent: a job and ten messages and locks an hour", 1, 10, 10)
BUSY_AGENT: Final = Rates("busy agent: one of each a minute", 60, 60, 60)
PROFILES: Final = (CODING, BUSY_AGENT)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a hosted database charges, in US dollars. An assumption: look at the price list of your plan."""

    per_million_written: float = 1.0
    per_billion_read: float = 1.0
    per_gb_month: float = 0.75


def mean_wait_s(service_s: float, utilisation: float) -> float:
    """Return the mean wait in a queue with random arrivals and equal service times (M/D/1)."""
    if not 0 <= utilisation < 1:
        raise ValueError(f"utilisation must be at least 0 and below 1, got {utilisation}")
    return utilisation * service_s / (2 * (1 - utilisation))


def per_agent(inputs: Inputs, rates: Rates) -> OperationCost:
    """Return what an agent costs in a second, with its share of an idle node."""
    shares = {**rates.per_s, IDLE: 1 / rates.agents_per_node}
    totals = {
        name: sum(getattr(inputs.operations[each], name) * share for each, share in shares.items())
        for name in OperationCost.__dataclass_fields__
    }
    return OperationCost(**totals)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one server carries of one kind of agent, with one core kept busy for `BUSY` of the time."""

    agents: int
    agents_by_push: int
    """How many there are when the server pushes `MAX_PUSHED` bytes a second to the replicas."""
    nodes: int
    operations_s: float
    log_bytes_s: float
    pushed_bytes_s: float
    """To all replicas together: each node has one."""
    rows_written_month: float
    """Of one agent, as the rest."""
    rows_read_month: float
    stored_bytes_month: float
    dollars_month: float


def capacity(inputs: Inputs, rates: Rates, prices: Prices | None = None) -> Capacity:
    """Return what one server carries."""
    prices = Prices() if prices is None else prices
    agent = per_agent(inputs, rates)
    agents = int(BUSY / agent.server_cpu_s)
    nodes = -(-agents // rates.agents_per_node)
    written, read = agent.rows_written * MONTH_S, agent.rows_read * MONTH_S
    stored = agent.stored_bytes * MONTH_S
    by_push = math.sqrt(MAX_PUSHED * rates.agents_per_node / agent.log_bytes)
    return Capacity(
        agents=agents,
        agents_by_push=int(by_push),
        nodes=nodes,
        operations_s=agents * sum(rates.per_s.values()),
        log_bytes_s=agents * agent.log_bytes,
        pushed_bytes_s=agents * agent.log_bytes * nodes,
        rows_written_month=written,
        rows_read_month=read,
        stored_bytes_month=stored,
        dollars_month=written / 1e6 * prices.per_million_written
        + read / 1e9 * prices.per_billion_read
        + stored / 1e9 * prices.per_gb_month,
    )
