"""Texts for models: the section of `AGENTS.md`, and the skill. They hold no path of this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.documents.marked_block import MarkedBlock
from vox_mesh.hosts.setup.file_part import FilePart

SECTION: Final = MarkedBlock("agents", "<!-- ", " -->")
"""Our section of `AGENTS.md`; the text around it is the user's."""

_TEXTS: Final = Path(__file__).parent / "texts"
_OURS: Final = (
    "\n<!-- Installed by `vox-mesh setup`, which replaces it; delete this line to keep changes. -->\n"
)
_READABLE: Final = 0o644


@cache
def skill_text() -> str:
    """Return the skill, as the plugin has it."""
    return (_TEXTS / "SKILL.md").read_text(encoding="utf-8")


@cache
def section_text() -> str:
    """Return the lines of our section of `AGENTS.md`."""
    return (_TEXTS / "AGENTS.md").read_text(encoding="utf-8")


def agents_md(project: Path) -> FilePart:
    """Return the section of a project's `AGENTS.md`."""
    file = ConfigFile(project, project / "AGENTS.md", mode=_READABLE)
    return FilePart("AGENTS.md", file, lambda text: SECTION.put(text, section_text()), SECTION.take)


def skill(base: Path, path: Path, *, for_user: bool) -> FilePart:
    """Return the skill at a path below `base`."""
    file = ConfigFile(base, path, follows_all=for_user, mode=_READABLE)
    return FilePart("skill", file, _put_skill, _take_skill)


def _put_skill(text: str | None) -> str:
    is_ours = text is None or text.endswith(_OURS)
    return f"{skill_text()}{_OURS}" if is_ours else str(text)


def _take_skill(text: str) -> str | None:
    return None if text.endswith(_OURS) else text
