"""What a node loads before it has anything to do: no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_IDLE = """
import sys
from pathlib import Path
from tools.homes import FILE
from vox_mesh import Mesh, run

async def main() -> None:
    async with Mesh.open(FILE.settings(Path(sys.argv[1]), None, http="1")):
        print(*sys.modules)

run(main())
"""


def test_a_node_that_has_nothing_to_do_loads_neither_a_client_nor_a_parser_nor_a_screen(
    tmp_path: Path,
) -> None:
    started = [sys.executable, "-c", _IDLE, str(tmp_path)]
    ended = subprocess.run(started, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60)
    loaded = {*ended.stdout.split()}
    assert "vox_mesh.http.relay.client" in loaded
    assert not {"httpx", "yaml", "rich", "textual"} & loaded
