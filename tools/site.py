"""Build the site of the documentation: HTML, the Markdown of each page next to it, and `llms.txt`.

`python -m tools.site` writes the folder `site`; it exits with 1 if a page loads anything from another host.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = _ROOT / "docs"
CONFIG: Final = _ROOT / "zensical.toml"
SITE: Final = _ROOT / "site"
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)#\s]+)(#[^)]*)?\)")
_LOADED: Final = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
_HEADING: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_BUILD_TIMEOUT_S: Final = 300
_DIAGRAM_PACKAGE: Final = "mmdc"
"""The package with the script that draws diagrams; the rest of it is not used."""


def pages() -> dict[str, list[str]]:
    """Return the pages of each section, in the order of the navigation."""
    project = tomllib.loads(CONFIG.read_text())["project"]
    sections: list[dict[str, list[str]]] = project["nav"]
    return {title: names for section in sections for title, names in section.items()}


def prepare(folder: Path) -> None:
    """Copy the pages; links that leave the documentation become text, since the site has only its pages."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    for page in folder.rglob("*.md"):
        source = DOCS / page.relative_to(folder)
        page.write_text(_without_outside(source.read_text(), source.parent))


def copy_diagram_script(folder: Path) -> None:
    """Copy the script that draws diagrams from its package, which `make docs` installs."""
    found = importlib.util.find_spec(_DIAGRAM_PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("the package that draws diagrams is not installed: run `make docs`")
    assets = folder / "assets"
    assets.mkdir(exist_ok=True)
    shutil.copyfile(Path(found.origin).parent / "assets" / "mermaid.js", assets / "mermaid.js")


def _without_outside(text: str, folder: Path) -> str:
    def replace(found: re.Match[str]) -> str:
        is_inside = (folder / found[2]).resolve().is_relative_to(DOCS)
        return found[0] if is_inside else found[1]

    return _LINK.sub(replace, text)


def llms_text() -> str:
    """Return the list of all pages for language models: each with its title and its first sentence."""
    project: dict[str, Any] = tomllib.loads(CONFIG.read_text())["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for section, names in pages().items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{title}]({name}): {sentence}" for name in names for title, sentence in [summary(name)]]
    return "\n".join(lines) + "\n"


def summary(name: str) -> tuple[str, str]:
    """Return the title of a page and the first sentence of its first paragraph."""
    text = (DOCS / name).read_text()
    title = _HEADING.search(text)
    assert title is not None, f"{name} has no title"
    paragraphs = text[title.end() :].split("\n\n")
    first = next(each for each in map(str.strip, paragraphs) if each and each[0] not in "#|`!<-")
    plain = " ".join(_LINK.sub(r"\1", first).replace("**", "").split())
    return title[1], re.split(r"(?<=[.!?:]) (?=[A-Z])", plain)[0]


def outside_resources(site: Path) -> Iterator[str]:
    """Yield what pages would load from other hosts."""
    for page in sorted(site.rglob("*.html")):
        for address in _LOADED.findall(page.read_text()):
            yield f"{page.relative_to(site)} loads {address}"


def build(site: Path) -> None:
    """Build the site into a folder, which is replaced."""
    # In a folder of its own: the generator treats `.cache` next to its configuration as its own.
    with tempfile.TemporaryDirectory(prefix="vox-site-") as temporary:
        folder = Path(temporary)
        prepare(folder / "docs")
        copy_diagram_script(folder / "docs")
        shutil.copyfile(CONFIG, folder / CONFIG.name)
        subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=folder,
            check=True,
            timeout=_BUILD_TIMEOUT_S,
        )
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(folder / "site", site)
        for page in (folder / "docs").rglob("*.md"):
            shutil.copyfile(page, site / page.relative_to(folder / "docs"))
    (site / "llms.txt").write_text(llms_text())


def main() -> int:
    """Build and check it."""
    build(SITE)
    found = list(outside_resources(SITE))
    for line in found:
        print(line, file=sys.stderr)
    print(f"open {SITE / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
