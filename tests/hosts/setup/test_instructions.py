"""The texts for models: short, harmless to the user's text around them, and every command in them works."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.project.test_docs import environment, follow, run
from vox_mesh.hosts.setup.file_part import SetupState
from vox_mesh.hosts.setup.instructions import SECTION, agents_md, section_text, skill, skill_text

_MAX_SKILL_WORDS: Final = 1_500
_MAX_SECTION_WORDS: Final = 150
_RECIPES: Final = 10
_TOOLS: Final = ("brief", "lock", "unlock", "send", "inbox", "ack", "submit", "take", "report", "look")
_INLINE: Final = re.compile(r"`(vox-mesh [^`]+)`")


def front_matter(text: str) -> dict[str, str]:
    """The fields that a host reads before it loads a skill."""
    _, fields, _ = text.split("---\n", 2)
    read: dict[str, str] = yaml.safe_load(fields)
    return read


def test_the_skill_is_short_and_says_when_to_use_it() -> None:
    fields = front_matter(skill_text())
    assert set(fields) == {"name", "description"}
    assert fields["name"] == "vox-mesh"
    assert len(fields["description"]) <= 1_024
    assert len(skill_text().split()) <= _MAX_SKILL_WORDS
    assert len(re.findall(r"^### \d+\. ", skill_text(), re.MULTILINE)) == _RECIPES
    assert all(f"`{tool}`" in skill_text() for tool in _TOOLS)


def test_every_command_of_the_skill_works_in_its_order(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "SKILL.md"
    page.write_text(skill_text())
    # By the grant that a setup gives, and no other.
    run("vox-mesh setup claude --agent coder --no-start && mkdir src", tmp_path, environment(tmp_path))
    run("vox-mesh inbox reviewer --ack", tmp_path, environment(tmp_path))
    monkeypatch.setenv("VOX_AGENT_ID", "coder")
    with ExitStack() as background:
        follow(page, tmp_path, request, background)
    assert "Fix the login." in (tmp_path / "CHANGELOG.md").read_text()


def test_every_command_of_the_section_is_one_that_there_is(tmp_path: Path) -> None:
    shown = [each.split() for each in _INLINE.findall(section_text())]
    assert len(shown) > 4
    for words in shown:
        named = [word for word in words[1:] if word.islower() and not word.startswith(("-", "file:"))]
        run(" ".join(["vox-mesh", *named[:2], "--help"]), tmp_path, environment(tmp_path))


def test_the_section_is_short() -> None:
    assert len(section_text().split()) <= _MAX_SECTION_WORDS


@pytest.mark.parametrize(
    "text", ["", "\n", "mine", "# Rules\n\nmine\n", "a\r\nb\r\n", "a\n\n\n", "\ufeffmine\n", "é ü\n"]
)
def test_the_text_around_the_section_stays_byte_for_byte(text: str, tmp_path: Path) -> None:
    path, part = tmp_path / "AGENTS.md", agents_md(tmp_path)
    path.write_bytes(text.encode())
    assert part.apply() is SetupState.ADDED
    assert part.apply() is SetupState.UNCHANGED
    assert path.read_bytes().startswith(text.encode())
    behind = b"more\n"
    path.write_bytes(path.read_bytes() + behind)
    assert part.check() is SetupState.PRESENT
    assert part.remove() is SetupState.REMOVED
    assert path.read_bytes() == text.encode() + behind


def test_a_file_that_was_made_for_the_section_is_removed_with_it(tmp_path: Path) -> None:
    part = agents_md(tmp_path)
    part.apply()
    assert part.remove() is SetupState.REMOVED
    assert list(tmp_path.iterdir()) == []


def test_an_old_section_is_replaced_where_it_is(tmp_path: Path) -> None:
    path, part = tmp_path / "AGENTS.md", agents_md(tmp_path)
    path.write_text(SECTION.put("before\n", "REPLACED\n") + "behind\n")
    assert part.check() is SetupState.OUTDATED
    assert part.apply() is SetupState.UPDATED
    text = path.read_text()
    assert "REPLACED" not in text
    assert text.startswith("before\n")
    assert text.endswith("behind\n")


def test_a_skill_that_the_user_has_made_his_own_is_kept(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "skills" / "vox-mesh" / "SKILL.md"
    part = skill(tmp_path, path, for_user=False)
    assert part.apply() is SetupState.ADDED
    assert path.read_text().startswith(skill_text())
    path.write_text(skill_text() + "mine\n")
    done = (part.check(), part.apply(), part.remove())
    assert done == (SetupState.KEPT, SetupState.KEPT, SetupState.ABSENT)
    assert path.read_text() == skill_text() + "mine\n"
