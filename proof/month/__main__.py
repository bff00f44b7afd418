"""`python -m proof.month`: run a month, and print the figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from proof.month.run import Day, Month, run


def main() -> int:
    """Run it; return 1 if anything could not be verified."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--share", type=float, default=0.01, help="of the work of 100 agents")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vox-month-") as folder:
        month = run(Path(folder), arguments.days, arguments.share)
    print("\n".join(lines(month)))
    return 1 if month.faults else 0


def lines(month: Month) -> list[str]:
    """Return the report: figures of the run, and what they mean for the whole fleet."""
    last, whole = month.days[-1], 1 / month.share
    found = [
        "day  file MiB  entries  jobs  verify CPU s  of entries  work CPU s",
        *map(_line, month.days),
        f"jobs, messages and locks: {month.jobs_done} of each",
        f"backup: {month.backup_bytes / 2**20:.1f} MiB in {month.backup_s:.2f} s of CPU",
        f"verification of everything, with the archive: {month.verify_all_s:.2f} s of CPU",
        f"archive: {month.archive_bytes / 2**20:.1f} MiB; {month.entries_deleted} entries deleted",
        "",
        f"for all the work of 100 agents, {whole:.0f} times as much:",
        f"  database {_scaled(month.empty_bytes, last.file_bytes, whole) / 2**30:.2f} GiB",
        f"  nightly verify at most {last.verify_s * whole:.0f} s of CPU",
        f"  backup at most {month.backup_s * whole:.0f} s of CPU",
        *(f"  {table}: {rows * whole:.0f} rows" for table, rows in _largest(last.rows)),
    ]
    return [*found, *(f"FAULT {each}" for each in month.faults)]


def _scaled(empty: float, measured: float, factor: float) -> float:
    """Return a size for more work; that of the empty database counts once."""
    return empty + (measured - empty) * factor


def _line(day: Day) -> str:
    """Return the line of a day."""
    size, jobs = day.file_bytes / 2**20, day.rows.get("jobs", 0)
    verified = f"{day.verify_s:8.2f}  {day.verified_entries:10}"
    return f"{day.number:3}  {size:8.1f}  {day.entries:7}  {jobs:4}  {verified}  {day.work_cpu_s:5.1f}"


def _largest(rows: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(rows.items(), key=lambda each: -each[1])[:8]


if __name__ == "__main__":
    sys.exit(main())
