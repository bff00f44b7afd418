"""Make docs/guides/scale.md: `python -m bench.scale.page`; with `--simulate`, after a new simulated day.

With `--check` it exits with 1 if the page differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from textwrap import fill
from typing import Any, Final

from bench.scale.inputs import FILE, Inputs
from bench.scale.model import PROFILES, capacity
from bench.scale.simulation import Fleet, quantile, simulate

PAGE: Final = FILE.parents[1] / "guides" / "scale.md"
DAY: Final = FILE.with_name("scale-day.json")
"""What the simulated day brought."""

_WIDTH: Final = 118
_TEXT: Final = Path(__file__).with_name("page.md")


def fleet_of(inputs: Inputs) -> Fleet:
    """Return the simulated fleet, with the measured cost of a job."""
    return Fleet(job_cost_s=inputs.operations["job"].server_cpu_s)


def day_of(fleet: Fleet) -> dict[str, Any]:
    """Simulate a day, and return its figures."""
    result = simulate(fleet)
    slots = fleet.nodes * fleet.slots * fleet.seconds
    counts = ("arrived", "completed", "waiting", "running", "lost")
    delays = {
        "a write waits for its database": result.database_waits,
        "a ready job waits for its start": result.start_delays,
        "a job of a lost node waits for its new start": result.recovery_delays,
    }
    return {
        "fleet": asdict(fleet),
        **{name: getattr(result, name) for name in counts},
        "databases busy": round(result.busy_s / fleet.databases / fleet.seconds, 5),
        "slots busy": round(result.slot_s / slots, 4),
        "delays": {
            name: {str(share): round(quantile(each, share), 4) for share in (0.5, 0.99, 0.999)}
            for name, each in delays.items()
        },
    }


def page(inputs: Inputs, day: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    relay = inputs.relay
    return Template(_TEXT.read_text()).substitute(
        machine=inputs.machine,
        load=f"{inputs.load:.0f}",
        operations=_operations(inputs),
        capacity=_capacity(inputs),
        fleet=_fleet(day["fleet"]),
        day=_day(day),
        agents=f"{relay.agents:,}",
        nodes=relay.nodes,
        messages=f"{relay.messages:,}",
        seconds=f"{relay.seconds:.0f}",
        relayed=f"{relay.relayed:,}",
        cores=f"{relay.server_cores + relay.node_cores:.1f}",
        relay=_table(
            ("what", "figure"),
            [
                ("cores, server", f"{relay.server_cores:.2f}"),
                ("cores, all nodes", f"{relay.node_cores:.2f}"),
                ("log pushed to each node", f"{relay.log_bytes_s / 1e6:.2f} MB/s"),
                ("from sending to receiving, p50", f"{relay.delay_p50_ms:.0f} ms"),
                ("from sending to receiving, p99", f"{relay.delay_p99_ms:.0f} ms"),
            ],
        ),
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _operations(inputs: Inputs) -> str:
    heads = ("one", "server", "node", "log, to each replica", "rows read", "rows written", "stored")
    rows = [
        (
            name,
            f"{each.server_cpu_s * 1e3:.2f} ms",
            f"{each.node_cpu_s * 1e3:.2f} ms",
            f"{each.log_bytes / 1e3:.1f} kB",
            f"{each.rows_read:.0f}",
            f"{each.rows_written:.1f}",
            f"{each.stored_bytes / 1e3:.1f} kB",
        )
        for name, each in inputs.operations.items()
    ]
    return _table(heads, rows)


def _capacity(inputs: Inputs) -> str:
    found = [(profile, capacity(inputs, profile)) for profile in PROFILES]
    lines = (
        ("agents, by its processor", [f"{each.agents:,}" for _, each in found]),
        ("agents, if it pushes at most 100 MB/s", [f"{each.agents_by_push:,}" for _, each in found]),
        ("nodes of as many, each with a replica", [f"{each.nodes:,}" for _, each in found]),
        ("operations", [f"{each.operations_s:,.0f}/s" for _, each in found]),
        ("log", [f"{each.log_bytes_s / 1e6:,.1f} MB/s" for _, each in found]),
        ("pushed to all replicas", [f"{each.pushed_bytes_s / 1e6:,.0f} MB/s" for _, each in found]),
        ("rows written, agent and month", [f"{each.rows_written_month / 1e6:,.2f} M" for _, each in found]),
        ("rows read, agent and month", [f"{each.rows_read_month / 1e6:,.2f} M" for _, each in found]),
        ("stored, agent and month", [f"{each.stored_bytes_month / 1e6:,.0f} MB" for _, each in found]),
        ("hosted, agent and month", [f"${each.dollars_month:,.2f}" for _, each in found]),
    )
    return _table(("", *(profile.name for profile in PROFILES)), [(name, *cells) for name, cells in lines])


def _fleet(fleet: Mapping[str, Any]) -> str:
    text = (
        f"{fleet['agents']:,} agents on {fleet['nodes']} nodes with {fleet['slots']} slots each,"
        f" in {fleet['databases']} databases."
        f" An agent has {fleet['jobs_per_agent_hour']:g} jobs an hour, of {fleet['job_s']:g} s on average,"
        f" and {fleet['swing']:.0%} more at noon."
        f" Every hour each database gets {fleet['burst']} jobs at once."
        f" At noon, {fleet['lost_nodes']} nodes are lost for good;"
        f" their jobs are taken over after {fleet['takeover_s']:g} s."
        f" Messages, locks and heartbeats take {fleet['background']:.0%} of each database."
        " The cost of a job is measured, all else is assumed."
    )
    return fill(text, _WIDTH)


def _day(day: Mapping[str, Any]) -> str:
    counts = ", ".join(
        f"{day[name]:,} {name}" for name in ("arrived", "completed", "waiting", "running") if day[name]
    )
    rows = [
        (name, *(f"{each[share]:,.3f} s" for share in ("0.5", "0.99", "0.999")))
        for name, each in day["delays"].items()
    ]
    return (
        f"Jobs at the end of the day: {counts}. {day['lost']:,} attempts were lost with their nodes.\n"
        f"Databases were busy with jobs for {day['databases busy']:.2%} of the time,"
        f" slots for {day['slots busy']:.0%}.\n\n" + _table(("", "p50", "p99", "p99.9"), rows)
    )


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    inputs = Inputs.load_file()
    if "--simulate" in arguments:
        DAY.write_text(json.dumps(day_of(fleet_of(inputs)), indent=2) + "\n")
    text = page(inputs, json.loads(DAY.read_text()))
    if "--check" in arguments:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
