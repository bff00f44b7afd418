"""The state of installed hooks: registered, current, trusted, and answered by a node."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from vox_mesh.errors import MeshError
from vox_mesh.hosts.setup.hook_plan import OPERATION, HookPlan
from vox_mesh.hosts.setup.hook_trial import HookTrialFailed
from vox_mesh.hosts.setup.hosts.codex import CODEX
from vox_mesh.hosts.setup.hosts.host import HookCall
from vox_mesh.hosts.setup.installer import HookInstaller, is_script_current
from vox_mesh.nodes.node_sockets import find_served_socket

_TIMEOUT_S: Final = 2.0


class HookState(StrEnum):
    """Whether hooks work, or the first reason why they do not."""

    NOT_INSTALLED = "not installed"
    UNREADABLE = "unreadable"
    OUTDATED = "outdated"
    NOT_TRUSTED = "not trusted"
    NOT_ANSWERING = "node not answering"
    INSTALLED = "installed"


@dataclass(frozen=True)
class HookStatus:
    """The state of the hooks of one host, and advice."""

    host: str
    scope: str
    state: HookState
    file: Path
    advice: str = ""
    plan: HookPlan | None = None


def status_of(installer: HookInstaller) -> HookStatus:
    """Return the state of a host's hooks."""
    try:
        state, advice, plan = _examine(installer)
    except MeshError as error:
        state, advice, plan = HookState.UNREADABLE, error.line, None
    scope = "user" if installer.project is None else "project"
    return HookStatus(installer.host.name, scope, state, installer.path, advice, plan)


def _examine(installer: HookInstaller) -> tuple[HookState, str, HookPlan | None]:
    host, calls = installer.host, installer.calls()
    install = f"run `vox-mesh hooks install {host.name}{'' if installer.project else ' --user'}`"
    if not calls:
        return HookState.NOT_INSTALLED, install, None
    plan = installed_plan(calls)
    if plan is None or not _is_current(installer, plan):
        return HookState.OUTDATED, f"{install} again", plan
    if host.name == CODEX.name and not _is_trusted(installer.file.target, installer.environment):
        return HookState.NOT_TRUSTED, CODEX.advice, plan
    if not is_answering(plan):
        return HookState.NOT_ANSWERING, "run `vox-mesh up`", plan
    return HookState.INSTALLED, "", plan


def installed_plan(calls: Sequence[HookCall]) -> HookPlan | None:
    """Return how hooks were installed, or `None` if another version has installed them."""
    urls = [call.url for call in calls if call.url]
    address = urls[0].partition(OPERATION)[0] if urls else None
    command = next((call.command for call in calls if call.command), "")
    return HookPlan.of_command(command, address)


def own_plan(installer: HookInstaller, calls: Sequence[HookCall], wanted: HookPlan) -> HookPlan:
    """Return how hooks were installed. Raises `HookTrialFailed` unless we have installed the handlers.

    A repository may bring handlers of its own, which name our script and run something else.

    `wanted`: what an installation would use; the agent, the project and the options may differ.
    """
    plan = installed_plan(calls)
    is_own = plan is not None and (plan.home, plan.python, plan.address) == (
        wanted.home,
        wanted.python,
        wanted.address,
    )
    if plan is None or not is_own or not _is_merged(installer, plan) or not _is_harmless(plan.script):
        raise HookTrialFailed(
            f"handlers in {installer.path} must be installed by this version for this mesh",
            hint=f"run `vox-mesh hooks install {installer.host.name}` again",
        )
    return plan


def _is_current(installer: HookInstaller, plan: HookPlan) -> bool:
    can_run = os.access(plan.python, os.X_OK) and is_script_current(plan.script)
    return can_run and _is_merged(installer, plan)


def _is_merged(installer: HookInstaller, plan: HookPlan) -> bool:
    """Return whether all handlers of ours in the file are those of the plan."""
    text = installer.file.read()
    return text is not None and installer.host.put(text, plan) == text


def _is_harmless(script: Path) -> bool:
    """Return whether a script is that of this version, or there is none, which handlers can answer."""
    return not script.exists() or is_script_current(script)


def _is_trusted(file: Path, environment: Mapping[str, str]) -> bool:
    """Return whether Codex notes trust in a hook of this file. Whether it has changed since is not seen."""
    config = CODEX.user_file(environment).with_name("config.toml")
    try:
        document = tomllib.loads(config.read_text())
    except (OSError, ValueError):
        return False
    hooks = document.get("hooks")
    states = hooks.get("state") if isinstance(hooks, dict) else None
    return isinstance(states, dict) and any(
        key.startswith(f"{file}:") and isinstance(state, dict) and "trusted_hash" in state
        for key, state in states.items()
    )


def is_answering(plan: HookPlan) -> bool:
    """Return whether a node of the mesh accepts connections."""
    if plan.address is None:
        return find_served_socket(plan.home) is not None
    parts = urlsplit(plan.address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_S):
            return True
    except OSError:
        return False
