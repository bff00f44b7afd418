"""A host, as the installation of hooks sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from vox_mesh.hosts.setup.documents.json_document import JsonDocument
from vox_mesh.hosts.setup.hook_handlers import HandlerLayout, HookHandler
from vox_mesh.hosts.setup.hook_plan import HookPlan

TIMEOUT_S: Final = 10
"""The time that a host gives a handler. The script answers within 3 s once it runs."""


class HookCall(NamedTuple):
    """What the host calls for an event: a command line of a shell, or a URL with headers."""

    event: str
    command: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    matcher: str | None = None


class HookHost(Protocol):
    """A host whose hooks are in one file. Its methods change texts only, and no files."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def title(self) -> str:
        """The name for people."""

    @property
    def project_file(self) -> str:
        """The file in a project, from its root."""

    @property
    def advice(self) -> str:
        """What the user has to do after an installation; empty if nothing."""

    def user_file(self, environment: Mapping[str, str]) -> Path:
        """Return the file in the user's own configuration."""

    def put(self, text: str | None, plan: HookPlan) -> str:
        """Return the text with our hooks; `None` stands for a file that does not exist."""

    def take(self, text: str) -> str | None:
        """Return the text without our hooks, or `None` if the file was made for them."""

    def calls(self, text: str) -> list[HookCall]:
        """Return what the host calls of ours."""


@dataclass(frozen=True)
class JsonHost:
    """A host that keeps handlers in a JSON file."""

    name: str
    title: str
    project_file: str
    user_folder: str
    """The folder of its configuration in the user's home folder."""

    user_name: str
    """The name of the file in that folder."""

    make_handlers: Callable[[HookPlan], Sequence[HookHandler]]
    layout: HandlerLayout = field(default_factory=HandlerLayout)
    folder_variable: str = ""
    """The variable that names another folder than `user_folder`."""

    advice: str = ""

    def user_file(self, environment: Mapping[str, str]) -> Path:
        chosen = environment.get(self.folder_variable, "")
        return (Path(chosen) if chosen else Path.home() / self.user_folder) / self.user_name

    def put(self, text: str | None, plan: HookPlan) -> str:
        document = None if text is None else JsonDocument(text)
        return self.layout.merge(document, self.make_handlers(plan)).text

    def take(self, text: str) -> str | None:
        left = self.layout.remove(JsonDocument(text))
        return None if left is None else left.text

    def calls(self, text: str) -> list[HookCall]:
        return [_call_of(found.handler) for found in self.layout.find(JsonDocument(text))]


def _call_of(handler: HookHandler) -> HookCall:
    body: Mapping[str, Any] = handler.body
    if "url" in body:
        headers = body.get("headers")
        return HookCall(
            handler.event,
            url=str(body["url"]),
            headers=headers if isinstance(headers, dict) else {},
            matcher=handler.matcher,
        )
    command = str(body.get("command") or body.get("bash") or "")
    return HookCall(handler.event, command, matcher=handler.matcher)
