"""Generate the table of all operations in docs/reference/http.md, from the operations themselves.

`python -m tools.http_reference` writes it; with `--check` it only says whether the page is up to date.
"""

from __future__ import annotations

import argparse
import re
from itertools import groupby
from pathlib import Path
from typing import Final

from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.operations import Operation

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "http.md"

_BEGIN: Final = "<!-- operations: written by `python -m tools.http_reference` -->\n"
_END: Final = "<!-- end of operations -->\n"
_TABLE: Final = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)


def table() -> str:
    """Return the operations, noun by noun."""
    lines: list[str] = []
    for noun, operations in groupby(OPERATIONS, key=lambda each: each.noun):
        lines += ["", f"### {noun}", "", "| | asks for | | an agent needs |", "| --- | --- | --- | --- |"]
        lines += map(_row, operations)
    return "\n".join((*lines, "", ""))


def _row(operation: Operation) -> str:
    asked = [f"`{name}`" for name in operation.query.model_fields] if operation.query else []
    if operation.body is not None:
        fields = operation.body.model_fields.items()
        asked += [f"**`{name}`**" if field.is_required() else f"`{name}`" for name, field in fields]
    mark = "" if operation.scope == "read" else " ✎"
    needs = ", and ".join(f"`{word}`".replace(" or ", "` or `") for word in operation.need.words)
    needs += " unless its own" if operation.need.is_own else ""
    path = f"`{operation.method} {operation.path}`{mark}"
    return f"| {path} | {', '.join(asked)} | {operation.summary} | {needs} |"


def page() -> str:
    """Return the page with its table up to date."""
    return _TABLE.sub(lambda _: f"{_BEGIN}{table()}{_END}", PAGE.read_text())


def main() -> int:
    """Write the page, or report that it is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.http_reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if it is out of date")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/reference/http.md is out of date: run `python -m tools.http_reference`")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
