"""Definitions of tools cost few tokens: every model that lists them reads them in every session."""

from __future__ import annotations

from typing import Final

import orjson
import pytest

from tests.support.mcp.tokens import count_tokens
from vox_mesh.hosts.mcp.definitions import DEFINITIONS, ToolDefinition
from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.hosts.mcp.server import tool_of

_MOST: Final = {Profile.WORK: 1_500, Profile.MAIL: 400, Profile.READ: 400, Profile.OPERATOR: 1_800}
_MOST_OF_ONE: Final = 250


def _listed(definition: ToolDefinition) -> str:
    """A definition as `tools/list` sends it."""
    tool = tool_of(definition).model_dump(by_alias=True, mode="json", exclude_none=True)
    return orjson.dumps(tool).decode()


@pytest.mark.parametrize("profile", Profile)
def test_a_profile_costs_few_tokens(profile: Profile) -> None:
    listed = [_listed(each) for each in profile.tools.values()]
    (tokens,) = count_tokens([f"[{','.join(listed)}]"])
    assert 0 < tokens <= _MOST[profile]


def test_no_tool_costs_many_tokens() -> None:
    counts = count_tokens([_listed(each) for each in DEFINITIONS.values()])
    assert max(counts) <= _MOST_OF_ONE, dict(zip(DEFINITIONS, counts, strict=True))


def test_the_tokenizer_counts_as_its_model_does() -> None:
    assert count_tokens(["hello world", "", "tiktoken is great!"]) == [2, 0, 6]
