"""The lines of the benchmark, plane by plane: what can be measured, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.environment import BenchEnvironment
from bench.figures import Found
from bench.lines import agents as agent_lines
from bench.lines import console as console_lines
from bench.lines import fleet as fleet_lines
from bench.lines import git as git_lines
from bench.lines import growth as growth_lines
from bench.lines import hooks as hook_lines
from bench.lines import hostile as hostile_lines
from bench.lines import inboxes as inbox_lines
from bench.lines import job_queries as roster_lines
from bench.lines import jobs as job_lines
from bench.lines import locks as lock_lines
from bench.lines import mcp as mcp_lines
from bench.lines import messages as message_lines
from bench.lines import nodes as node_lines
from bench.lines import oplog as oplog_lines
from bench.lines import peers as peer_lines
from bench.lines import processor as processor_lines
from bench.lines import replica as replica_lines
from bench.lines import rhythm as rhythm_lines
from bench.lines import service as service_lines
from bench.lines import startup as startup_lines
from bench.lines import steps as step_lines
from bench.lines import store as store_lines
from bench.lines import successors as successor_lines
from bench.lines import wakeups as wake_lines
from bench.lines import watch as watch_lines
from bench.lines.channel_peers import CHANNEL_PEERS, compare_channel_with
from bench.lines.lock_peers import LOCK_PEERS, compare_locks_with
from bench.peers.channels.registry import JOBS, MESSAGES
from bench.peers.registry import PEERS
from bench.peers.workflows import WORKFLOW_PEERS, compare_workflows_with


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to measure; it may give several figures."""

    name: str
    what: str
    run: Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]
    needs_server: bool = False


_served: Final = partial(Line, needs_server=True)


def _channels(kind: str) -> list[Line]:
    return [
        Line(peer.line, f"{kind}, next to {peer.service.title}", compare_channel_with(peer))
        for peer in CHANNEL_PEERS
        if peer.kind == kind
    ]


@dataclass(frozen=True, slots=True)
class Plane:
    """Lines that belong together: a table of the page."""

    name: str
    title: str
    lines: tuple[Line, ...]


PLANES: Final = (
    Plane(
        "store",
        "The store",
        (
            _served("one-caller-sqld", "one script at a time, on a server", store_lines.one_caller_sqld),
            _served("64-callers-sqld", "scripts combined, on a server", store_lines.many_callers_sqld),
            Line("one-caller-file", "one script at a time, in a file", store_lines.one_caller_file),
            Line("cpu-file", "processor time, one at a time, in a file", processor_lines.one_at_a_time),
            Line("64-callers-file", "scripts combined, in a file", store_lines.many_callers_file),
            Line("4-processes-file", "several processes on one file", store_lines.many_processes_file),
            Line("one-caller-memory", "one script at a time, in memory", store_lines.one_caller_memory),
            _served("merged-sqld", "scripts of one shape, on a server", store_lines.merged_sqld),
            Line("merged-file", "scripts of one shape, in a file", store_lines.merged_file),
            Line("read-memory", "a point query, in memory", store_lines.read_memory),
            Line("read-file", "a point query, in a file", store_lines.read_file),
            _served("read-sqld", "a point query, on a server", store_lines.read_sqld),
        ),
    ),
    Plane(
        "replica",
        "The replica and watches",
        (
            _served("read-replica", "a point query, on the replica", replica_lines.read_replica),
            _served("first-copy", "a replica from nothing", replica_lines.first_copy),
            _served("following", "a replica that follows", replica_lines.following),
            _served("visible-mesh", "a commit seen by another process", watch_lines.visible_mesh),
            Line("visible-file", "a commit seen by another process, in a file", watch_lines.visible_file),
            _served("idle", "waiting for a commit", watch_lines.idle),
        ),
    ),
    Plane(
        "oplog",
        "The op log and nodes",
        (
            _served("oplog-append", "ops of many callers", oplog_lines.append),
            _served("oplog-one-caller", "one op at a time, on a server", oplog_lines.one_caller),
            Line("oplog-verify", "a whole log", oplog_lines.verify),
            _served("nodes-live", "who is here, in a large mesh", node_lines.live),
            _served("nodes-writes", "a node that has nothing to do", node_lines.writes),
            Line("nodes-fleet", "nodes of a large mesh that have nothing to do", fleet_lines.fleet),
        ),
    ),
    Plane(
        "locks",
        "Locks",
        (
            _served("lock-pairs-sqld", "a lock for each caller, on a server", lock_lines.pairs_sqld),
            _served("lock-pair-sqld", "one lock at a time, on a server", lock_lines.one_caller_sqld),
            Line("lock-pairs-file", "a lock for each caller, in a file", lock_lines.pairs_file),
            _served("lock-contended", "one lock for all callers", lock_lines.contended),
            _served("lock-hand-over-mesh", "from process to process", lock_lines.hand_over_mesh),
            Line("lock-hand-over-file", "from process to process, in a file", lock_lines.hand_over_file),
            Line("lock-guard", "many paths, many patterns", lock_lines.guard),
            *(
                Line(peer.line, f"locks, next to {peer.service.title}", compare_locks_with(peer))
                for peer in LOCK_PEERS
            ),
        ),
    ),
    Plane(
        "messages",
        "Messages",
        (
            _served("message-relay", "to another process, by the relay", message_lines.by_relay),
            _served("message-watch", "to another process, without the relay", message_lines.by_watch),
            _served("message-rates-sqld", "many senders, on a server", message_lines.rates_sqld),
            Line("message-rates-file", "many senders, in a file", message_lines.rates_file),
            _served("message-inbox-sqld", "a large inbox, on a server", inbox_lines.large_sqld),
            Line("message-inbox-file", "a large inbox, in a file", inbox_lines.large_file),
            _served("message-idle-sqld", "to one of many idle receivers, on a server", wake_lines.idle_sqld),
            Line("message-idle-file", "to one of many idle receivers, in a file", wake_lines.idle_file),
            Line("message-claims", "many senders, or one that is held back", inbox_lines.claims),
            *_channels(MESSAGES),
        ),
    ),
    Plane(
        "jobs",
        "Jobs",
        (
            _served("job-scheduled-sqld", "many at a time, on a server", job_lines.scheduled_sqld),
            Line("job-scheduled-file", "many at a time, in a file", job_lines.scheduled_file),
            _served("job-done-sqld", "jobs that do nothing, on a server", job_lines.done_sqld),
            Line("job-done-file", "jobs that do nothing, in a file", job_lines.done_file),
            Line("job-scored-file", "jobs with a score, in a file", job_lines.scored_file),
            _served("job-begun-sqld", "how soon a job begins, on a server", job_lines.begun_sqld),
            Line("job-begun-file", "how soon a job begins, in a file", job_lines.begun_file),
            _served("job-chain-sqld", "the steps of a chain, on a server", successor_lines.chain_sqld),
            Line("job-chain-file", "the steps of a chain, in a file", successor_lines.chain_file),
            Line("job-fan-in-file", "a job that waits for many others", successor_lines.fan_in_file),
            _served("steps-one-sqld", "one durable step after another, on a server", step_lines.one_sqld),
            Line("steps-one-file", "one durable step after another, in a file", step_lines.one_file),
            _served("steps-rate-sqld", "durable steps of many jobs, on a server", step_lines.rate_sqld),
            Line("steps-rate-file", "durable steps of many jobs, in a file", step_lines.rate_file),
            Line("steps-resume", "a job that goes on after many steps", step_lines.resume),
            Line("steps-suspended", "a worker with many suspended jobs", step_lines.suspended),
            *(
                Line(each.line, f"workflows of {each.title}", compare_workflows_with(each), each.on_server)
                for each in WORKFLOW_PEERS
            ),
            Line("job-roster", "questions to a large roster", roster_lines.roster),
            _served("job-crowded-sqld", "among many that are finished", roster_lines.crowded_sqld),
            Line("job-crowded-file", "among many that are finished, in a file", roster_lines.crowded_file),
            *_channels(JOBS),
            Line("git-export", "exported to a git repository", git_lines.export),
        ),
    ),
    Plane(
        "service",
        "The service and commands",
        (
            _served("service-up", "from nothing to ready", service_lines.up),
            Line("service-command", "a command next to a node", service_lines.command),
            _served("agents", "agents that take and report jobs", agent_lines.taking),
            Line("grants", "what acting by a grant costs", agent_lines.granted),
            Line("mcp", "a tool of MCP next to one that does nothing", mcp_lines.tools),
            Line("hooks", "hooks of hosts of agents", hook_lines.hooks),
            Line("startup", "commands without a node and next to one", startup_lines.startup),
            _served("service-idle", "a node that has nothing to do", service_lines.idle),
            Line("hostile-reads", "a client that reads as hard as it can", hostile_lines.reads),
        ),
    ),
    Plane(
        "console",
        "The web console",
        (Line("console", "the web console in a real browser", console_lines.console),),
    ),
    Plane(
        "rhythm",
        "The rhythm",
        (
            Line("rhythm-beat", "how punctual beats are", rhythm_lines.lateness),
            Line("rhythm-drift", "an hour of beats", rhythm_lines.drift),
            _served("rhythm-writes", "what claims cost", rhythm_lines.writes),
            _served("rhythm-roll-up", "a bar with many claims", rhythm_lines.roll_up),
        ),
    ),
    Plane(
        "peers",
        "Peers",
        tuple(
            _served(f"peer-{peer.name}", f"jobs of {peer.title}", peer_lines.compare_with(peer))
            for peer in PEERS
        ),
    ),
    Plane(
        "growth",
        "How cost grows",
        (
            Line("growth-nodes-file", "with nodes, in a file", growth_lines.nodes_file),
            _served("growth-nodes-sqld", "with nodes, on a server", growth_lines.nodes_sqld),
            Line("growth-jobs", "with jobs in the table", growth_lines.jobs),
            Line("growth-messages", "with messages in the table", growth_lines.messages),
            Line("growth-log", "with the length of the log", growth_lines.log),
        ),
    ),
)

LINES: Final = tuple(line for plane in PLANES for line in plane.lines)


def select(names: Sequence[str]) -> list[Line]:
    """The lines whose name holds one of the names; all of them if none is given."""
    return [line for line in LINES if not names or any(name in line.name for name in names)]


def plane_of(line: Line) -> Plane:
    """The plane that a line belongs to."""
    return next(plane for plane in PLANES if any(each.name == line.name for each in plane.lines))
