"""The site of the documentation: every page is in it, once, and language models find all of them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tools.site import CONFIG, DOCS, copy_diagram_script, llms_text, outside_resources, pages, prepare


def test_every_page_is_in_the_navigation_once() -> None:
    named = Counter(name for names in pages().values() for name in names)
    assert named == Counter(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_list_for_language_models_links_every_page_with_a_sentence() -> None:
    lines = re.findall(r"^- \[.+\]\((.+)\): (\S.+)$", llms_text(), re.MULTILINE)
    assert [name for name, _ in lines] == [name for names in pages().values() for name in names]


def test_the_pages_of_the_site_link_to_pages_of_the_site_only(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    prepare(folder)
    for page in folder.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).resolve().is_relative_to(folder.resolve()), f"{page.name}: {target}"


def test_a_page_that_loads_something_from_another_host_is_seen(tmp_path: Path) -> None:
    (tmp_path / "own.html").write_text('<script src="assets/a.js"></script><a href="https://x.example">x</a>')
    (tmp_path / "other.html").write_text('<link rel="stylesheet" href="https://fonts.example/css">')
    assert list(outside_resources(tmp_path)) == ["other.html loads https://fonts.example/css"]


def test_diagrams_are_drawn_by_a_script_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = (CONFIG.parent / "requirements/diagrams.lock").read_text()
    package = tmp_path / locked.partition("==")[0]
    (package / "assets").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "assets/mermaid.js").write_text("globalThis.mermaid = {};")
    monkeypatch.syspath_prepend(tmp_path)
    copy_diagram_script(tmp_path)
    project = tomllib.loads(CONFIG.read_text())["project"]
    assert [(tmp_path / each).read_text() for each in project["extra_javascript"]] == [
        "globalThis.mermaid = {};"
    ]
    fences = project["markdown_extensions"]["pymdownx"]["superfences"]["custom_fences"]
    assert [each["name"] for each in fences] == ["mermaid"]
