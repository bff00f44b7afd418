"""Bundle the libraries of the web console into `vox_mesh/web`: `python -m tools.vendor_web`.

For maintainers, after a change of `requirements/npm-web`. The results are committed with their hashes: the
console needs no build, and a review sees every change of a library. Tests only compare the hashes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.install_npm import REQUIREMENTS, packages

WEB: Final = REQUIREMENTS.parent / "vox_mesh" / "web"
HASHES: Final = REQUIREMENTS / "npm-web" / "vendored.sha256"
LIBRARIES: Final = ("preact", "@preact/signals", "@preact/signals-core", "htm", "uplot")
VENDORED: Final = ("uplot.css", "uplot.js", "vendor.LICENSES.txt", "vendor.js")
_BUILD_S: Final = 60

_VENDOR: Final = """
import { h } from "preact";
import htm from "htm";
export { h, render } from "preact";
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from "preact/hooks";
export { signal, computed, batch, useSignal } from "@preact/signals";
export const html = htm.bind(h);
"""
_UPLOT: Final = 'export { default } from "uplot";'


def locked_versions() -> dict[str, str]:
    """Return the locked version of each bundled library."""
    lock = json.loads((REQUIREMENTS / "npm-web" / "package-lock.json").read_text())["packages"]
    return {name: lock[f"node_modules/{name}"]["version"] for name in LIBRARIES}


def banner(*libraries: str) -> str:
    """Return the first line of a bundle, which names the libraries in it."""
    versions = locked_versions()
    return f"/* {', '.join(f'{name} {versions[name]}' for name in libraries)}; made by tools.vendor_web */"


def hash_list(folder: Path = WEB) -> str:
    """Return the hashes of the vendored files as `sha256sum` prints them."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in VENDORED]
    return "".join(lines)


def _bundle(source: str, first_line: str) -> str:
    modules = packages("npm-web")
    options = (
        "--bundle",
        "--format=esm",
        "--minify",
        "--target=es2022",
        "--legal-comments=none",
        "--charset=utf8",
    )
    built = subprocess.run(
        [str(modules / ".bin" / "esbuild"), *options],
        cwd=modules.parent,
        input=source,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_BUILD_S,
    )
    return f"{first_line}\n{built.stdout}"


def _licences() -> str:
    modules = packages("npm-web")
    versions = locked_versions()
    texts = [
        f"{name} {versions[name]}\n\n{(modules / name / 'LICENSE').read_text().strip()}\n"
        for name in LIBRARIES
    ]
    return f"\n{'-' * 72}\n\n".join(texts)


def main() -> int:
    """Write the bundles, their licences and their hashes."""
    WEB.mkdir(exist_ok=True)
    style = (packages("npm-web") / "uplot" / "dist" / "uPlot.min.css").read_text()
    contents = {
        "uplot.css": f"{banner('uplot')}\n{style.rstrip()}\n",
        "uplot.js": _bundle(_UPLOT, banner("uplot")),
        "vendor.LICENSES.txt": _licences(),
        "vendor.js": _bundle(_VENDOR, banner(*LIBRARIES[:-1])),
    }
    for name in VENDORED:
        (WEB / name).write_text(contents[name])
    HASHES.write_text(hash_list())
    print(HASHES.read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
