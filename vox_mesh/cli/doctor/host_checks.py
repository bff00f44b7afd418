"""Checks of hosts of agents: whether their hooks are registered, trusted and answered."""

from __future__ import annotations

from typing import Final

from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, ok, warn
from vox_mesh.cli.locks.paths import root_of
from vox_mesh.hosts.setup.hook_status import HookState, HookStatus, status_of
from vox_mesh.hosts.setup.installer import HookInstaller
from vox_mesh.hosts.setup.registry import HOSTS
from vox_mesh.model.base.backends import Backend

_WORDS: Final = {
    HookState.NOT_ANSWERING: "not answering: no node listens",
    HookState.NOT_TRUSTED: "not trusted: the host skips them",
}


async def hooks(context: CheckContext) -> CheckResult | None:
    """Check that hosts of agents ask this mesh before an edit."""
    if context.settings.backend is Backend.MEMORY:
        return None
    found = _registered(context)
    if not found:
        return ok("not registered with any host; `vox-mesh hooks install HOST` does it")
    faulty = [each for each in found if each.state is not HookState.INSTALLED]
    if faulty:
        named = "; ".join(f"{each.host}: {_WORDS.get(each.state, each.state.value)}" for each in faulty)
        return warn(named, "; ".join(dict.fromkeys(each.advice for each in faulty)))
    return ok(", ".join(dict.fromkeys(each.host for each in found)))


def _registered(context: CheckContext) -> list[HookStatus]:
    project = root_of(context.settings).resolve()
    states = [
        status_of(HookInstaller(host, root, context.environment))
        for host in HOSTS.values()
        for root in (project, None)
    ]
    return [each for each in states if each.state is not HookState.NOT_INSTALLED]


CHECKS: Final[tuple[DoctorCheck, ...]] = (hooks,)
