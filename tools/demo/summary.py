"""The end of the demo: what can be proven of the run, and how to look around."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tools.demo.claims import Claim
from tools.demo.scenario import OWNER
from tools.demo.workspace import Workspace

_LOOK_AROUND: Final = ("nodes --all", "job list", "messages list", "conflicts list", "oplog verify", "top")
_NAME: Final = 10


def summarise(claims: Sequence[Claim], console: Console) -> bool:
    """Print each claim with what contradicts it; return whether nothing does."""
    console.print()
    for claim in claims:
        for n, found in enumerate(claim.found or ["not shown"]):
            _print(console, claim if n == 0 else None, found)
        for fault in claim.faults:
            console.print(Text(f"{'':5}{'':{_NAME}}{fault}", style="bold red"), soft_wrap=True)
    wrong = [claim.name for claim in claims if claim.faults]
    if wrong:
        console.print(f"\nTHIS IS WRONG, please report it: {', '.join(wrong)}.", style="bold red")
    return not wrong


def _print(console: Console, claim: Claim | None, found: str) -> None:
    if claim is None:
        line = Text(" " * (5 + _NAME))
    elif claim.faults:
        line = Text("NO   ", style="bold red").append(f"{claim.name:<{_NAME}}", style="bold")
    else:
        line = Text("ok   ", style="green").append(f"{claim.name:<{_NAME}}", style="bold not green")
    console.print(line.append(found, style="not bold default"), soft_wrap=True)


def point_around(workspace: Workspace, console: Console) -> None:
    """Print how to inspect the run."""
    home = workspace.folder if workspace.url is None else workspace.folder / OWNER
    here = f"VOX_MESH_HOME={home} VOX_MESH_NODE_ID={OWNER} VOX_DB_PATH={workspace.database}"
    lines = [f"export VOX_MESH_ENABLED=1 {here}"]
    lines += [f"{_beside_python('vox-mesh')} {each}" for each in _LOOK_AROUND]
    lines.append(f"{_shown(Path(sys.executable))} -m tools.demo --check")
    kept = "all of it" if workspace.url is None else "a copy of the server's database"
    console.print(f"\nLook around, {kept} stays until the next run:")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)


def _beside_python(command: str) -> str:
    return _shown(Path(sys.executable).with_name(command))


def _shown(path: Path) -> str:
    """Return a path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
