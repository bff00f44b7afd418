"""`vox-mesh attention`: what needs a person."""

from __future__ import annotations

from dataclasses import asdict

import click

from vox_mesh.cli.support.all_scopes import all_scopes_option, show_all_scopes
from vox_mesh.cli.support.output import json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.model.locks.records import iso_of
from vox_mesh.views.live.attention import attention as read_attention
from vox_mesh.views.live.item import AttentionItem


@click.command()
@all_scopes_option
@json_option
def attention(all_scopes: bool, as_json: bool) -> int | None:
    """List what needs a person, most urgent first.

    Open conflicts, questions and approvals, dead letters, overdue acknowledgements, failed jobs without a
    retry, broken promises, budgets near their limit, stuck agents and dead nodes. Ends with 0 whether there
    is anything or not.

    \b
    Example:
      vox-mesh attention
      vox-mesh attention --all-scopes
    """
    if all_scopes:
        return show_all_scopes(
            "attention",
            read_attention,
            lambda found: [asdict(each) if as_json else _line(each) for each in found.items],
            as_json=as_json,
        )
    found = run_command("attention", read_attention)
    if as_json:
        show_one(asdict(found), as_json=True)
    else:
        show_several([_line(each) for each in found.items], as_json=False)
    return None


def _line(item: AttentionItem) -> dict[str, object]:
    """Return the row of a table."""
    return {
        "urgency": item.urgency.value,
        "kind": item.kind.value,
        "since": iso_of(item.since_ms),
        "title": item.title,
        "detail": item.detail,
        "id": item.id,
    }
