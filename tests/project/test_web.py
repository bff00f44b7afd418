"""The files of the web console: small, our own or of locked libraries, and complete without another host."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tools.install_npm import node, packages
from tools.vendor_web import HASHES, LIBRARIES, VENDORED, WEB, banner, hash_list
from tools.web_types.check import check_types
from vox_mesh.http.console.files import read_files

_MAX_COMPRESSED: Final = 100_000
_MAX_LINES: Final = 300
_EXPORTED: Final = (
    "h html render useState useEffect useLayoutEffect useRef useMemo useCallback signal computed batch"
    " useSignal"
)
_MISTAKE: Final = '/** @type {number} */\nexport const wrong = "a text";\n'
_ADDRESS: Final = re.compile(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", re.IGNORECASE)
_NAMESPACES: Final = ("http://www.w3.org",)
"""Names of XML namespaces: nothing is ever loaded from them."""


def _served() -> list[Path]:
    """Return the files that a page may load."""
    return sorted(path for path in WEB.rglob("*") if path.is_file() and path.suffix != ".txt")


def _own() -> list[Path]:
    return [path for path in _served() if path.name not in VENDORED]


def test_vendored_libraries_are_as_recorded() -> None:
    assert hash_list() == HASHES.read_text(), "run `python -m tools.vendor_web`"


@pytest.mark.parametrize(
    ("name", "libraries"),
    [("vendor.js", LIBRARIES[:-1]), ("uplot.js", LIBRARIES[-1:]), ("uplot.css", LIBRARIES[-1:])],
)
def test_vendored_libraries_have_the_locked_versions_and_a_licence(
    name: str, libraries: tuple[str, ...]
) -> None:
    assert (WEB / name).read_text().splitlines()[0] == banner(*libraries), "run `python -m tools.vendor_web`"
    licences = (WEB / "vendor.LICENSES.txt").read_text()
    assert [library for library in libraries if not re.search(rf"^{library} ", licences, re.MULTILINE)] == []


def test_the_vendor_file_exports_what_modules_of_the_console_import() -> None:
    exports = (WEB / "vendor.js").read_text().rsplit("export{", 1)[1]
    assert sorted(re.findall(r" as (\w+)", exports)) == sorted(_EXPORTED.split())


def test_all_files_together_stay_small_when_compressed() -> None:
    sizes = {
        name: len(file.compressed) for name, file in read_files(WEB).items() if not name.endswith(".txt")
    }
    assert sum(sizes.values()) <= _MAX_COMPRESSED, sizes


def test_modules_of_the_console_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in _own()}
    assert {name: count for name, count in lines.items() if count > _MAX_LINES} == {}


def test_no_file_names_another_host() -> None:
    found = {path.name: _ADDRESS.findall(path.read_text()) for path in _served()}
    foreign = {
        name: hosts for name, all_hosts in found.items() if (hosts := [*{*all_hosts} - {*_NAMESPACES}])
    }
    assert foreign == {}


def test_types_of_the_console_are_right_and_a_mistake_is_found(tmp_path: Path) -> None:
    """TypeScript finds one that is planted, and no other."""
    try:
        node()
        packages("npm-web")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"types of the web console are not checked without npm packages: {error}")
    web = tmp_path / "web"
    shutil.copytree(WEB, web)
    (web / "app" / "planted.js").write_text(_MISTAKE)
    (found,) = check_types(web).splitlines()
    assert found.startswith("web/app/planted.js(2,14): error TS2322"), found
