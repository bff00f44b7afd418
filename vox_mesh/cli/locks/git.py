"""Git: the work tree, the paths that would be committed, and the guard's pre-commit hook."""

from __future__ import annotations

import filecmp
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import vox_mesh.cli
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.locks.file_paths import path_in


@dataclass(frozen=True)
class WorkTree:
    """A work tree of a repository, by its root."""

    root: Path

    @classmethod
    def here(cls) -> WorkTree:
        """Return the work tree of the current folder."""
        return cls(Path(_line(_run_git("rev-parse", "--show-toplevel", folder=Path.cwd()))))

    @property
    def hooks(self) -> Path:
        """The folder of its hooks, as configured; it need not exist."""
        return self.root / _line(_run_git("rev-parse", "--git-path", "hooks", folder=self.root))

    def staged(self) -> list[str]:
        """Return all paths that a commit of the index would change, relative to the root.

        Renames are not detected, so that both names of a renamed file count. In a hook, git's environment
        names the index.
        """
        differing = _run_git(
            *("diff", "--cached", "--name-only", "-z"),
            *("--no-renames", "--no-ext-diff", "--ignore-submodules=none"),
            folder=self.root,  # where `diff.relative` changes nothing
        )
        return [_name(path) for path in differing.split(b"\0") if path]

    def pushed(self, lines: Sequence[str]) -> list[str]:
        """Return all paths that a push would change, by the lines that git gives a pre-push hook."""
        paths: dict[str, None] = {}
        for line in lines:
            match line.split():
                case [_, local, _, remote] if local.strip("0"):
                    known = [remote] if remote.strip("0") and self._has(remote) else ["--remotes"]
                    paths |= dict.fromkeys(self._changed_in(local, known))
        return list(paths)

    def between(self, old: str, new: str) -> list[str]:
        """Return all paths that differ between two commits."""
        differing = _run_git(
            *(
                "diff",
                "--name-only",
                "-z",
                "--no-renames",
                "--no-ext-diff",
                "--end-of-options",
                old,
                new,
                "--",
            ),
            folder=self.root,
        )
        return [_name(path) for path in differing.split(b"\0") if path]

    def _changed_in(self, commit: str, known: list[str]) -> list[str]:
        """Return the paths that commits change which are not `known`."""
        changed = _run_git(
            *(
                "log",
                "--format=",
                "--name-only",
                "-z",
                "--no-renames",
                "--no-ext-diff",
                "-m",
                "--first-parent",
            ),
            *(commit, "--not", *known, "--"),
            folder=self.root,
        )
        return [_name(path) for path in changed.split(b"\0") if path]

    def _has(self, commit: str) -> bool:
        try:
            _run_git("cat-file", "-e", f"{commit}^{{commit}}", folder=self.root)
        except BadSettings:
            return False
        return True

    def path_of(self, given: str) -> str:
        """Return a path of the current folder relative to the root; that of a folder ends with `/`."""
        return path_in(self.root, given, Path.cwd())


def _name(path: bytes) -> str:
    """Decode a path as lock keys are, in any locale: holder and committer may use different ones."""
    return path.decode(errors="surrogateescape")


def _run_git(*arguments: str, folder: Path) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise BadSettings("git not found", hint="install git and add it to PATH")
    answer = subprocess.run([git, *arguments], cwd=folder, capture_output=True)  # noqa: S603 - fixed arguments
    if answer.returncode != 0:
        message = os.fsdecode(answer.stderr).strip() or f"git {arguments[0]} ended with {answer.returncode}"
        raise BadSettings(message, hint="run this in the work tree of a git repository")
    return answer.stdout


def _line(answer: bytes) -> str:
    return os.fsdecode(answer.removesuffix(b"\n"))


# --- the hook ------------------------------------------------------------------------------------

NAME: Final = "pre-commit"
_CHECKS: Final = {
    NAME: "--staged",
    "pre-push": "--pushed",
    "post-checkout": '--between "$1" "$2"',
}
"""The hooks of git, and which paths each checks."""

HOOKS: Final = tuple(_CHECKS)
_PUSH: Final = "pre-push"
_CHECKOUT: Final = "post-checkout"

_OURS: Final = "# Installed by `vox-mesh guard install`; `vox-mesh guard uninstall` takes it out again."
# This line and that which calls the kept hook also identify installed hooks: a change would orphan them.
_MESH_VARIABLES: Final = (
    *("VOX_MESH_ENABLED", "VOX_MESH_SCOPE_ID", "VOX_MESH_REPOSITORY_ID", "VOX_MESH_HOME"),
    *("VOX_DB_URL", "TURSO_DATABASE_URL", "VOX_DB_PATH", "VOX_DB_DRIVER", "VOX_DB_ALLOW_PLAINTEXT"),
)
"""Variables written into a hook: they identify the mesh and hold no secret."""


class HookInTheWay(MeshError):
    """Another hook exists, which must not be overwritten."""

    code = "hook_in_the_way"


def kept_name(name: str) -> str:
    """Return the name under which a previous hook is kept."""
    return f"{name}.local"


def install_hook(
    hooks: Path,
    settings_in: Path,
    environment: Mapping[str, str],
    *,
    force: bool,
    require_lock: bool,
    name: str = NAME,
) -> Path:
    """Install or update a hook; with `force`, an existing one is kept and called first."""
    hook, kept = hooks / name, hooks / kept_name(name)
    is_there = os.path.lexists(hook)
    keeps = _has_kept(hook) if is_ours(hook) else is_there
    if is_there and not is_ours(hook):
        if not force:
            raise HookInTheWay(
                f"{name} hook already exists: {hook}",
                hint=f"pass --force to keep it as {kept.name} and call it first, "
                "or make it call `vox-mesh guard check --staged`",
            )
        _keep(hook, kept)
    try:
        hooks.mkdir(parents=True, exist_ok=True)
        new = hooks / f"{name}.{os.getpid()}.new"
        text = _text(name, settings_in, environment, keeps=keeps, require_lock=require_lock)
        new.write_bytes(os.fsencode(text))
        new.chmod(0o755)
        new.replace(hook)  # atomic: never half a hook, and never none
    except OSError as error:
        raise _unusable(hooks, error) from None
    return hook


def uninstall_hook(hooks: Path, *, name: str = NAME) -> bool:
    """Remove a hook and restore the previous one; return whether the hook was installed."""
    hook, kept = hooks / name, hooks / kept_name(name)
    if not is_ours(hook):
        return False
    try:
        if _has_kept(hook) and os.path.lexists(kept):
            kept.replace(hook)
        else:
            hook.unlink()
    except OSError as error:
        raise _unusable(hooks, error) from None
    return True


def is_ours(hook: Path) -> bool:
    """Return whether this is the guard's hook."""
    return _OURS in _lines(hook)


def is_current_hook(
    hooks: Path, settings_in: Path, environment: Mapping[str, str], *, name: str = NAME
) -> bool:
    """Return whether an installed hook is the one that an installation here would write."""
    lines = _lines(hooks / name)
    requires = any("--require-lock" in line for line in lines)
    keeps = _has_kept(hooks / name)
    return lines == _text(name, settings_in, environment, keeps=keeps, require_lock=requires).splitlines()


def _call_kept(name: str) -> str:
    kept = f'"${{0%/*}}/{kept_name(name)}"'
    given = 'printf "%s\\n" "$pushed" | ' if name == _PUSH else ""
    return f'[ ! -x {kept} ] || {given}{kept} "$@" || exit'


def _has_kept(hook: Path) -> bool:
    return _call_kept(hook.name) in _lines(hook)


def _lines(hook: Path) -> list[str]:
    try:
        return os.fsdecode(hook.read_bytes()).splitlines()
    except OSError:
        return []


def _keep(hook: Path, kept: Path) -> None:
    try:
        if not os.path.lexists(kept):
            shutil.copy2(hook, kept, follow_symlinks=False)
        elif not filecmp.cmp(hook, kept, shallow=False):  # the same if an earlier install was interrupted
            raise HookInTheWay(f"{kept} already exists with other content", hint="move it away first")
    except OSError as error:
        raise _unusable(hook.parent, error) from None


def _unusable(hooks: Path, error: OSError) -> HookInTheWay:
    return HookInTheWay(
        f"hooks in {hooks} can't be changed: {error}", hint="check the permissions of the folder"
    )


def _text(
    name: str, settings_in: Path, environment: Mapping[str, str], *, keeps: bool, require_lock: bool
) -> str:
    check = f'guard check {_CHECKS[name]} --settings-in "$folder"{" --require-lock" if require_lock else ""}'
    python, package, folder = (
        shlex.quote(str(path)) for path in (sys.executable, vox_mesh.cli.__file__, settings_in)
    )
    return "\n".join(
        [
            "#!/bin/sh",
            _OURS,
            *_PURPOSES[name],
            *([_call_kept(name)] if keeps else []),
            *(
                f'[ -n "${{{variable}+set}}" ] || export {variable}={shlex.quote(environment[variable])}'
                for variable in _MESH_VARIABLES
                if variable in environment
            ),
            f"python={python} package={package} folder={folder}",
            *_RUNS[name](check),
            'echo "vox-mesh: locks not checked: $python with vox-mesh not found;'
            ' install it and run \\`vox-mesh guard install\\` again" >&2',
            # Only for a person: an agent should not skip the check.
            '[ ! -t 2 ] || echo "vox-mesh: VOX_GUARD=off skips the check" >&2',
            "exit 0" if name == _CHECKOUT else '[ "$VOX_GUARD" = off ] || [ "$VOX_GUARD" = lenient ]',
            "",
        ]
    )


def _run_check(check: str, before: str = "exec ", behind: str = "") -> list[str]:
    return [
        'if [ -x "$python" ] && [ -f "$package" ]; then',
        # -P: files of the repository must not be imported as modules.
        f'    {before}"$python" -P -m vox_mesh.cli {check}{behind}',
        "elif command -v vox-mesh > /dev/null; then",
        f"    {before}vox-mesh {check}{behind}",
        "fi",
    ]


_PURPOSES: Final = {
    NAME: ["# It rejects commits of paths that another agent holds."],
    _PUSH: ["# It rejects pushes of paths that another agent holds.", "pushed=$(cat)"],
    _CHECKOUT: [
        "# It warns if another agent holds paths that a checkout has changed.",
        # A clone has no commit before it, and a checkout of files is an edit.
        '[ "$3" = 1 ] && [ -n "$(echo "$1" | tr -d 0)" ] || exit 0',
    ],
}
_RUNS: Final[dict[str, Callable[[str], list[str]]]] = {
    NAME: _run_check,
    _PUSH: lambda check: _run_check(check, 'printf "%s\\n" "$pushed" | ', "; exit"),
    _CHECKOUT: lambda check: _run_check(check, "", "; exit 0"),
}
