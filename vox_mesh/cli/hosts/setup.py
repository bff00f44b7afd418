"""`vox-mesh setup`: bring coding agents onto the mesh of a project, with one command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.hosts.setup_parts import (
    AgentPart,
    MeshPart,
    NodePart,
    SetupOptions,
    SetupPart,
    host_parts,
    hosts_in_use,
    shared_parts,
)
from vox_mesh.cli.init import choose_home
from vox_mesh.cli.locks.git import WorkTree
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import Record, json_option, printable, show_several
from vox_mesh.cli.support.session import start
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.hosts.setup.file_part import SetupState
from vox_mesh.hosts.setup.host_agent import checked_host_agent
from vox_mesh.hosts.setup.host_paths import HOSTS, detect_hosts
from vox_mesh.hosts.setup.mcp_entry import configured_agent, has_tracked_file
from vox_mesh.settings import Settings, load_settings

_GOOD: Final = (SetupState.PRESENT, SetupState.KEPT)
_NEXT: Final = {
    "claude": "start `claude` here, and approve the MCP server vox-mesh when it asks",
    "codex": "start `codex` here, trust the project, and trust the hooks with /hooks: others do not run",
    "gemini": "start `gemini` here, and trust the folder when it asks",
    "cursor": "open the project in Cursor, and enable the MCP server vox-mesh in its settings",
    "opencode": "start `opencode` here",
    "copilot": "start `copilot` here, and trust the folder when it asks",
}


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", type=click.Choice(HOSTS))
@click.option("--check", "only_checks", is_flag=True, help="Show what is missing; change nothing.")
@click.option("--remove", "removes", is_flag=True, help="Take everything back, except the mesh's data.")
@click.option("--user", "for_user", is_flag=True, help="Set up the hosts of this user for all projects.")
@click.option("--agent", metavar="NAME", help="Name of the agent.", show_default="that of the host")
@click.option("--auto/--no-auto", default=None, help="Lock each free file before an edit, for 10 minutes.")
@click.option("--strict/--no-strict", default=None, help="Deny edits while the mesh does not answer.")
@click.option(
    "--start/--no-start", "starts", default=True, show_default=True, help="Start a node if none runs."
)
@json_option
def setup(
    hosts: tuple[str, ...],
    only_checks: bool,
    removes: bool,
    for_user: bool,
    agent: str | None,
    auto: bool | None,
    strict: bool | None,
    starts: bool,
    as_json: bool,
) -> ExitCode:
    """Set up coding agents: mesh, identity, MCP, hooks, skill.

    HOST is claude, codex, gemini, cursor, opencode or copilot. Without HOST, those are set up that are used
    in this project or found on PATH.

    It makes the mesh of this repository, admits an agent for each host with a token of its own, adds the MCP
    server and the hooks to the host's files, a section to AGENTS.md, a skill and the git guard, and starts a
    node. Everything else in these files is kept. Safe to run at any time: what is there is kept, what
    is old is replaced, and what failed is completed.

    --check ends with 1 if something is missing. --remove restores the files byte for byte and stops the node
    that was started; the mesh and its data stay.

    \b
    Example:
      vox-mesh setup claude
    """
    if only_checks and removes:
        raise click.UsageError("--check and --remove can't be combined")
    settings = _settings()
    if settings.agent_id is not None and not only_checks:
        raise BadSettings(
            f"`vox-mesh setup` must be run by a person, got VOX_AGENT_ID={settings.agent_id}",
            hint="unset VOX_AGENT_ID, or run it with --check",
        )
    project = _project()
    chosen = HOSTS if removes and not hosts else _chosen(hosts, project)
    if agent is not None and len(chosen) > 1:
        raise click.UsageError("--agent needs one HOST: agents with one name do not lock each other out")
    base = Path.home() if for_user else project
    agents = {host: agent or _agent_of(host, base, for_user=for_user) for host in chosen}
    options = SetupOptions(
        settings,
        project,
        base,
        {host: checked_host_agent(name) for host, name in agents.items()},
        for_user,
        auto,
        strict,
    )
    run = _SetupRun(options, as_json=as_json)
    if removes:
        return run.remove()
    if only_checks:
        return run.check(starts=starts)
    return run.apply(starts=starts)


def _agent_of(host: str, base: Path, *, for_user: bool) -> str:
    """Return the agent that a host was set up for, by default one of its name. No repository chooses it."""
    found = configured_agent(host, base, for_user=for_user) or host
    if found != host and not for_user and has_tracked_file(host, base):
        raise BadSettings(
            f"agent of {host} must be confirmed: a file that git tracks names {found!r}",
            hint=f"run `vox-mesh setup {host} --agent NAME`, with that name or another one",
        )
    return found


class _SetupRun:
    """One run of the command, over all parts."""

    def __init__(self, options: SetupOptions, *, as_json: bool) -> None:
        self._options = options
        self._as_json = as_json
        self._records: list[Record] = []
        self._faults: list[str] = []

    def check(self, *, starts: bool) -> ExitCode:
        """Show the state of all parts."""
        for host, part in self._parts(starts=starts):
            self._do(host, part, part.check)
        self._show()
        missing = [each for each in self._records if each["state"] not in _GOOD]
        if not missing:
            return ExitCode.DONE
        self._say(f"{len(missing)} of {len(self._records)} parts to do: run `vox-mesh setup`")
        return ExitCode.NO

    def apply(self, *, starts: bool) -> ExitCode:
        """Make or refresh all parts; one that fails does not keep the others from being made."""
        for host, part in self._parts(starts=starts):
            self._do(host, part, part.apply)
            if isinstance(part, AgentPart):
                self._faults += part.requests
        self._show()
        if any(each["part"] == "node" and each["state"] == SetupState.MISSING for each in self._records):
            self._say("no node runs, so that hooks check nothing: run `vox-mesh up`")
        if self._faults:
            return ExitCode.NO
        for host in self._options.agents:
            self._say(f"{host}: {_NEXT[host]}")
        return ExitCode.DONE

    def remove(self) -> ExitCode:
        """Take all parts back, the last one first."""
        others = hosts_in_use(self._options)
        for host, part in reversed(list(self._parts(starts=True, others=others))):
            self._do(host, part, part.remove)
        self._records = [each for each in self._records if each["state"] != SetupState.ABSENT]
        self._show()
        if others:
            self._say(f"still set up: {', '.join(others)}; so what they share stays")
        self._say(f"the mesh and its data stay: {self._options.home}")
        return ExitCode.NO if self._faults else ExitCode.DONE

    def _parts(self, *, starts: bool, others: Sequence[str] = ()) -> Iterator[tuple[str, SetupPart]]:
        """Yield all parts, in the order in which they are made; without what `others` need."""
        options = self._options
        yield "", MeshPart(options.settings, as_json=self._as_json)
        for agent in dict.fromkeys(options.agents.values()):
            yield "", AgentPart(options.settings, agent)
        for host in options.agents:
            for part in host_parts(options, host):
                yield host, part
        for part in shared_parts(options, others):
            yield "", part
        if not others:
            yield "", NodePart(options.home, options.project, starts)

    def _do(self, host: str, part: SetupPart, step: Any) -> None:
        try:
            state = step()
        except MeshError as error:
            state = SetupState.FAILED
            self._faults.append(f"{part.name} in {self._short(part.where)}: {error.line}")
        name = f"{part.name} of {host}" if host else part.name
        self._records.append({"part": name, "state": str(state), "where": self._short(part.where)})

    def _short(self, where: str) -> str:
        """Return a path relative to the project, if it is in there."""
        path = Path(where)
        return (
            str(path.relative_to(self._options.project))
            if path.is_relative_to(self._options.project)
            else where
        )

    def _show(self) -> None:
        show_several(self._records, as_json=self._as_json)
        for fault in self._faults:
            click.echo(f"vox-mesh: {printable(' '.join(fault.split()))}", err=True)

    def _say(self, line: str) -> None:
        if not self._as_json:
            click.echo(line, err=True)


def _settings() -> Settings:
    """Return the settings of the project's mesh, whether it exists or not."""
    home, _ = choose_home(start("setup"), here=False, for_user=False)
    chosen: dict[str, Any] = {} if home is None else {"home_dir": home}
    return load_settings(enabled=True, **chosen)


def _project() -> Path:
    """Return the root of the work tree, or the current folder outside of repositories."""
    try:
        return WorkTree.here().root
    except BadSettings:
        return Path.cwd()


def _chosen(hosts: Sequence[str], project: Path) -> list[str]:
    """Return the hosts to set up, in a fixed order."""
    if not hosts:
        found = detect_hosts(project)
        if not found:
            raise click.UsageError(
                f"no host found in this project or on PATH: name one of {', '.join(HOSTS)}"
            )
        for host, trace in found.items():
            click.echo(f"found {host}: {trace}", err=True)
        hosts = list(found)
    return [host for host in HOSTS if host in hosts]
