"""`python -m bench.report.page [JSONL ...]`: make the page of the benchmarks and its pictures of kept runs.

Without a file, of `benchmarks.jsonl` next to the page; files that are named become that one first. Of a line
that is in several files, the last counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Final

from bench.figures import Figure
from bench.lines.registry import PLANES
from bench.report import pictures, tables
from bench.report.records import Record, merged, read, written
from bench.report.report import machine_line

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
DATA: Final = "project/benchmarks.jsonl"
PAGE: Final = "project/benchmarks.md"
_PICTURE: Final = "pictures/benchmarks-{}.svg"
_TEXT: Final = Path(__file__).with_name("page.md")


def documents(records: Sequence[Record]) -> dict[str, str]:
    """All that is made of them: the page and its pictures, by their paths in docs/."""
    drawn: dict[str, str] = {}

    def with_picture(name: str, svg: str | None, table: str) -> str:
        if svg is None:
            return table
        path = drawn_as(name)
        drawn[path] = svg
        return f"![{name}](../{path})\n\n{table}"

    def of_plane(name: str) -> list[Record]:
        return [record for record in records if record.plane == name]

    planes = [
        f"## {plane.title}\n\n"
        + with_picture(plane.name, pictures.of_targets(plane.title, found), tables.of_figures(found))
        for plane in PLANES
        if plane.name not in ("peers", "growth") and (found := of_plane(plane.name))
    ]
    peers = of_plane("peers")
    growth = [
        with_picture(line, pictures.of_growth(found), tables.of_growth(found))
        for line, each in groupby(of_plane("growth"), key=lambda record: record.line)
        for found in [list(each)]
    ]
    page = Template(_TEXT.read_text()).substitute(
        machine=_machine(records),
        summary=_summary(records),
        missed=tables.missed(records),
        planes="\n\n".join(planes),
        peers=with_picture("peers", pictures.of_peers(peers), tables.of_peers(peers)),
        growth="\n\n".join(growth),
    )
    return {PAGE: page, **drawn}


def drawn_as(name: str) -> str:
    """The path of a picture, in docs/."""
    return _PICTURE.format(name)


def _machine(records: Sequence[Record]) -> str:
    """A sentence for each day and machine that something was measured on."""
    sentences = []
    for occasion in dict.fromkeys(_occasion(record) for record in records):
        then = [record for record in records if _occasion(record) == occasion]
        machines = [record.run["machine"] for record in then]
        load = max(machine["load"] for machine in machines)
        server = next((machine["server"] for machine in machines if machine["server"]), None)
        lines = "`, `".join(dict.fromkeys(record.line for record in then))
        which = "" if len(then) == len(records) else f" (`{lines}`)"
        warning = " **A short look: these figures mean little.**" if then[0].run["quick"] else ""
        machine = machine_line({**machines[0], "load": load, "server": server})
        sentences.append(f"Measured on {then[0].run['at'][:10]}{which}: {machine}.{warning}")
    return "\n".join(sentences)


def _occasion(record: Record) -> tuple[object, ...]:
    machine = record.run["machine"]
    same = (machine[name] for name in ("cores", "arch", "system", "python", "sqlite"))
    return (record.run["at"][:10], record.run["quick"], *same)


def _summary(records: Sequence[Record]) -> str:
    figures = [each.found for each in records if isinstance(each.found, Figure)]
    judged_value = [figure.is_reached for figure in figures if figure.target is not None]
    return f"{sum(map(bool, judged_value))} of {len(judged_value)} targets were reached."


def main(files: Sequence[Path], docs: Path = DOCS) -> None:
    """Write them; pictures that are no longer made go."""
    data = docs / DATA
    if files:
        data.write_bytes(written(merged([read(file.read_bytes()) for file in files])))
    made = documents(read(data.read_bytes()))
    for old in docs.glob(drawn_as("*")):
        old.unlink()
    for path, text in made.items():
        (docs / path).write_text(text)


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
