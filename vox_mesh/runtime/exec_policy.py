"""The policy of command jobs that the settings of a node choose."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from vox_mesh.jobs.exec.isolation import choose_isolation
from vox_mesh.jobs.exec.policy import ExecPolicy, path_of_worker
from vox_mesh.jobs.exec.secrets import ExecSecrets
from vox_mesh.model.jobs.policy_roots import parse_policy_roots
from vox_mesh.settings import Settings
from vox_mesh.settings.fields import ENV_FILE
from vox_mesh.settings.secrets import CREDENTIALS, FILE_SUFFIX, SECRET_VARIABLES
from vox_mesh.settings.trust import config_folder, env_files

_log = logging.getLogger(__name__)

ADVICE: Final = "install bubblewrap, or run the node as root with VOX_WORKER_EXEC_USER"
"""What to do about commands that are not isolated."""


def exec_policy_of(settings: Settings) -> ExecPolicy:
    """Return the policy of command jobs. Raises `BadSettings` if a setting can't be used on this machine."""
    policy = ExecPolicy.parsed(settings.worker_exec_allow)
    secrets = ExecSecrets.parsed(settings.worker_exec_secrets)
    files = [path.absolute() for path in _node_files(settings, secrets)]
    database = settings.file_path.absolute()

    def hidden() -> Sequence[Path]:
        others = database.parent.glob(f"{database.name}*")  # its log and its replicas
        return [each for each in (*files, *others) if each.exists()]

    isolation = choose_isolation(
        settings.worker_exec_user, settings.worker_exec_sandbox, settings.worker_exec_limits, hidden
    )
    path = path_of_worker(os.environ.get("PATH"))
    return replace(policy, isolation=isolation, secrets=secrets, path=path, folder=_own_folder())


def _own_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def check_exec_settings(settings: Settings) -> None:
    """Report a setting that can't be used before anything starts. Raises `BadSettings`."""
    parse_policy_roots(settings.worker_policy_roots)
    if settings.worker_exec:
        exec_policy_of(settings)
    else:
        ExecPolicy.parsed(settings.worker_exec_allow)


def open_exec_policy(settings: Settings) -> ExecPolicy:
    """Return the policy for a node that starts: warn if commands are not isolated, and hide their secrets."""
    policy = exec_policy_of(settings)
    policy.secrets.take()
    if not policy.isolation.is_isolated:
        _log.warning("exec jobs not isolated: %s; %s", policy.isolation.describe(), ADVICE)
    return policy


def _node_files(settings: Settings, secrets: ExecSecrets) -> Iterator[Path]:
    """Yield the files and folders in which a node keeps its key, its tokens and other secrets."""
    yield settings.home_dir
    yield config_folder()
    yield Path(ENV_FILE)
    names = (CREDENTIALS, *(name + FILE_SUFFIX for name in SECRET_VARIABLES))
    yield from (Path(path) for name in names if (path := os.environ.get(name)))
    for file in env_files():
        yield file.path
        yield from (file.path.parent / path for name in names if (path := file.variables.get(name)))
    yield from (path for path in secrets.sources.values() if path is not None)
