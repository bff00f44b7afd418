"""Own names: the inputs that say who acts. An agent that has proved its name can give no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final, get_args, get_type_hints

from pydantic import BaseModel, Field

from vox_mesh.http.access import Credential
from vox_mesh.http.problems import Problem
from vox_mesh.model.base.reserved import PERSON


class _Own:
    """Marks an input that names the sender, holder, claimant, reader or actor."""


_OWN: Final = _Own()

OwnAgent = Annotated[str, Field(min_length=1, max_length=128), _OWN]
"""The agent that acts. If it has proved who it is, the input may be left out, and can't name another."""


def own_names(hints: Mapping[str, Any]) -> frozenset[str]:
    """Return which of these inputs name the agent that acts."""
    return frozenset(name for name, hint in hints.items() if _is_own(hint))


def own_fields(model: type[BaseModel] | None) -> frozenset[str]:
    """Return the fields of a model that name the agent that acts."""
    return frozenset() if model is None else own_names(get_type_hints(model, include_extras=True))


def _is_own(hint: Any) -> bool:
    return hint is _OWN or any(_is_own(each) for each in get_args(hint))


def with_own_name(agent: str | None, names: Iterable[str], given: Any) -> Any:
    """Return the given values with the agent's name where it is missing. Raises 403 if another is named."""
    if agent is None or not isinstance(given, dict):
        return given
    for name in names:
        if given.get(name) not in (None, agent):
            raise not_your_name(agent, name)
    return {**given, **dict.fromkeys(names, agent)}


def refuse_people(names: Iterable[str], given: Any) -> None:
    """Raise 403 if these inputs name a person: people act through sessions of the console only."""
    for name in names if isinstance(given, dict) else ():
        if str(given.get(name, "")).startswith(PERSON):
            raise _of_a_person(name)


def _of_a_person(where: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        "not_your_name",
        f"{where} must not begin with {PERSON}: people act through the console",
        "name an agent, or open the console with `vox-mesh console`",
    )


def not_your_name(agent: str | None, where: str) -> Problem:
    """Return the refusal of a name that is not the client's."""
    return Problem(
        HTTPStatus.FORBIDDEN,
        "not_your_name",
        f"{where} must be {agent}, as authenticated" if agent else f"{where}: this credential names no agent",
        f"leave out {where}",
    )


def check_headers(credential: Credential, names: Iterable[str], where: str) -> None:
    """Raise 403 if a header names another agent than the credential allows, or more than one."""
    given = set(names)
    if not given:
        return
    if len(given) > 1:
        raise Problem(HTTPStatus.BAD_REQUEST, "bad_header", f"{where} must be given once")
    if not credential.may_name_agents or credential.own_name not in (None, *given):
        raise not_your_name(credential.own_name, where)
    if credential.session is None and any(each.startswith(PERSON) for each in given):
        raise _of_a_person(where)
