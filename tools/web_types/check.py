"""Check the JSDoc types of the web console: `python -m tools.web_types.check`; print what is wrong.

The modules are checked in a copy, where the vendored bundles are replaced by the types of their packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.install_npm import node, packages
from tools.vendor_web import VENDORED, WEB

_HERE: Final = Path(__file__).resolve().parent
_CHECK_S: Final = 120


def check_types(web: Path = WEB) -> str:
    """Return what TypeScript says about the modules in a folder; nothing if all types are right."""
    modules = packages("npm-web")
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder)
        shutil.copytree(
            web, draft / "web", ignore=shutil.ignore_patterns(*VENDORED, "*.css", "*.html", "*.svg")
        )
        for types in _HERE.glob("*.d.ts"):
            shutil.copy(types, draft / "web")
        shutil.copy(_HERE / "jsconfig.json", draft)
        (draft / "node_modules").symlink_to(modules)
        compiler = [str(node()), str(modules / "typescript" / "bin" / "tsc"), "--project", "jsconfig.json"]
        ended = subprocess.run(
            [*compiler, "--pretty", "false"],
            cwd=draft,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
            check=False,
        )
    said = (ended.stdout + ended.stderr).strip()
    return said or ("" if ended.returncode == 0 else f"tsc ended with {ended.returncode}")


def main() -> int:
    """Print the mistakes; return 0 if there is none."""
    said = check_types(Path(sys.argv[1]) if len(sys.argv) > 1 else WEB)
    if said:
        print(said)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
