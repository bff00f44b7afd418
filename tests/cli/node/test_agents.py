"""`vox-mesh agents` and `grant`: the owner admits agents and grants them what they may do."""

from __future__ import annotations

import re

from tests.cli.conftest import VoxCommand, running_node
from vox_mesh.cli.node.grants import grant
from vox_mesh.model.grants.capability import ACTIONS
from vox_mesh.model.grants.templates import TEMPLATES


def test_an_agent_is_admitted_with_the_key_in_this_home(vox: VoxCommand) -> None:
    with running_node(vox):
        made = vox("agents", "init", "coder", "--json").document
        assert vox("agents", "admit", "coder", "--json").document == made
        assert vox("agents", "admit", "tester", "--json").document["public_key"] is None


def test_the_help_names_all_actions_and_templates() -> None:
    named = {*re.findall(r"[a-z]+(?:\.[a-z]+)?", grant.help or "")}
    assert {*ACTIONS, *TEMPLATES} <= named
