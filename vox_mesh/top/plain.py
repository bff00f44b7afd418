"""The view without a terminal: one look, as text."""

from __future__ import annotations

from vox_mesh.cli.support.output import table
from vox_mesh.top.headline import headlines
from vox_mesh.top.panels import PANELS
from vox_mesh.views.overview import Overview


def plain_lines(overview: Overview) -> list[str]:
    """All panels, one below the other, as wide as they need be."""
    lines = [*headlines(overview), f"last op {overview.last_op_id}"]
    for panel in PANELS:
        lines += ["", f"{panel.title.lower()}: {panel.summary(overview)}"]
        names = [column.name or "note" for column in panel.columns]
        rows = [
            dict(zip(names, (text for text, _ in line.cells), strict=True)) for line in panel.lines(overview)
        ]
        lines += [f"  {line}" for line in table(rows)] if rows else []
    return lines
