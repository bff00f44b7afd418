"""The commands that a node's command server runs, with the options of each that it knows."""

from __future__ import annotations

TYPE_CHECKING = False  # that of `typing`, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

_FORWARDED: Final = {
    "agents": "--all --limit --json",
    "agents heartbeat": "--json",
    "agents show": "--json",
    "conflicts list": "--open --table --json",
    "conflicts show": "--json",
    "cron list": "--json",
    "guard check": "--agent --require-lock --json",
    "job dead": "--kind --limit --json",
    "job list": "--state --kind --node --counts --limit --json",
    "job ready": "--kind --limit --json",
    "job show": "--json",
    "kind list": "--json",
    "lock acquire": "--agent --ttl --until --wait --shared --fresh --heartbeats --literal --json",
    "lock list": "--agent --json",
    "lock release": "--token --agent --all --literal --json",
    "lock renew": "--token --ttl --literal --json",
    "messages ack": "--claim --json",
    "messages dead": "--limit --before --json",
    "messages list": "--state --from --to --thread --limit --before --json",
    "messages nack": "--claim --retry-in --reason --json",
    "messages overdue": "--limit --json",
    "messages show": "--json",
    "nodes": "--stale-ms --all --json",
    "roles show": "--json",
    "route list": "--json",
    "rule list": "--json",
    "send": "--type --priority --thread --correlation --reply-to --ttl --ack-within --wait-ack"
    " --max-attempts --key --from --agent --ordered --text --json",
    "worker list": "--json",
}
"""None of them reads stdin or a file that its arguments name, writes a file, starts a program that the
caller chooses, or needs the owner's key: a caller in a sandbox gains nothing by asking the node. `git`, which
`guard check` starts, is the node's own, and only names the work tree. With --staged, git would read the index
that the caller's variables name, and run programs that the repository's settings name. --session needs the
caller's own parent process."""

GUARD: Final = "guard check"
"""The command that asks git."""

_GROUPS: Final = {"agents": ("--limit",), "nodes": ("--stale-ms",)}
"""The commands that are also groups, with their options that take a value."""

OPTIONS: Final = {name: frozenset(options.split()) for name, options in _FORWARDED.items()}
"""The options of each with which it is forwarded."""


def forwarded_name(arguments: Sequence[str]) -> str | None:
    """Return the name of the command, or `None` if the command server must not run it.

    An option that is not known here, a lone `-` and `--` are reasons: only an ordinary process runs these.
    """
    name = " ".join(arguments[:2])
    words = arguments[2:]
    if name not in OPTIONS:
        name, words = "".join(arguments[:1]), arguments[1:]
    options = OPTIONS.get(name)
    if options is None:
        return None
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    if not given <= options or not _has_options_only(words, _GROUPS.get(name)):
        return None
    return name


def _has_options_only(words: Sequence[str], with_value: Sequence[str] | None) -> bool:
    """Return whether there is no command of the group among the words; what is no group has none."""
    before = ("", *words)
    return with_value is None or all(
        word.startswith("-") or before[at] in with_value for at, word in enumerate(words)
    )
