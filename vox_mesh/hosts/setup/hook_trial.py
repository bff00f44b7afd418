"""A trial of installed hooks: a recorded event goes through the very handler that the host would call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from vox_mesh.errors import MeshError
from vox_mesh.hosts.setup.hook_plan import split_command
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, HookCall
from vox_mesh.settings.secrets import secret_of

AGENT_TOKEN: Final = "VOX_AGENT_TOKEN"  # noqa: S105 - the name of the variable
BEFORE_EDIT: Final = "before_edit"
SESSION_END: Final = "session_end"
_MAX_BYTES: Final = 1 << 20
_VARIABLE: Final = re.compile(r"\$\{?([A-Z_][A-Z0-9_]*)\}?")


class HookTrialFailed(MeshError):
    """A hook could not be called, or its answer is not what the host expects."""

    code = "hook_failed"


class HookAnswer(NamedTuple):
    """The answer of a handler."""

    event: str
    handler: str
    answer: Mapping[str, Any]


class HookSample(NamedTuple):
    """A recorded event, and the event under which the host registers its handler."""

    registered: str
    document: Mapping[str, Any]
    tool: str = ""
    """The tool by which the host selects the handler."""


def sample_of(host: str, kind: str, project: Path, path: str) -> HookSample:
    """Return a recorded event of a host, with the folder and the path of the edit in their places."""
    recorded = json.loads(files(__package__).joinpath("samples", f"{host}.json").read_text())[kind]
    places = {"PROJECT": str(project), "PATH": str(project / path), "NAME": path}
    return HookSample(recorded["event"], _filled(recorded["document"], places), recorded.get("tool", ""))


def _filled(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in places.items():
            value = value.replace(f"<{name}>", text)
        return value
    if isinstance(value, dict):
        return {name: _filled(each, places) for name, each in value.items()}
    return [_filled(each, places) for each in value] if isinstance(value, list) else value


def try_hook(calls: list[HookCall], sample: HookSample, folder: Path) -> HookAnswer:
    """Send an event through the handler that a host calls. Raises `HookTrialFailed` without an answer."""
    call = next((each for each in calls if _is_called(each, sample)), None)
    if call is None:
        raise HookTrialFailed(
            f"no handler of vox-mesh for the event {sample.registered}", hint="run `vox-mesh hooks install`"
        )
    content = json.dumps(sample.document).encode()
    if call.url:
        return HookAnswer(call.event, "http", _checked(_post(call, content)))
    return HookAnswer(call.event, "command", _checked(_run(call, content, folder)))


def _is_called(call: HookCall, sample: HookSample) -> bool:
    if call.event != sample.registered or "--wait" in split_command(call.command):
        return False
    return not (call.matcher and sample.tool) or re.fullmatch(call.matcher, sample.tool) is not None


def _run(call: HookCall, content: bytes, folder: Path) -> bytes:
    token = secret_of(AGENT_TOKEN)  # hosts have it in their environment, commands take it out of theirs
    try:
        done = subprocess.run(  # noqa: S603 - the command is the one that the host runs
            ["/bin/sh", "-c", call.command],
            input=content,
            cwd=folder,
            env={**os.environ, **({AGENT_TOKEN: token} if token else {})},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise HookTrialFailed(
            f"handler can't be run: {error}", hint="run `vox-mesh hooks install` again"
        ) from None
    if done.returncode != 0:
        said = os.fsdecode(done.stderr)[-500:].strip()
        raise HookTrialFailed(
            f"handler must end with 0, got {done.returncode}: {said}",
            hint="run `vox-mesh hooks install` again",
        )
    return done.stdout


def _post(call: HookCall, content: bytes) -> bytes:
    headers = {name: _VARIABLE.sub(_variable, text) for name, text in call.headers.items()}
    request = urllib.request.Request(  # noqa: S310 - the address of the configuration, HTTP only
        call.url, content, {"Content-Type": "application/json", **headers}, method="POST"
    )
    if request.type not in ("http", "https"):
        raise HookTrialFailed(
            f"URL of the handler must be HTTP, got {call.url}", hint="install the hooks again"
        )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(_MAX_BYTES)
            return found
    except (OSError, urllib.error.URLError) as error:
        raise HookTrialFailed(f"node did not answer: {error}", hint="run `vox-mesh up`") from None


def _variable(found: re.Match[str]) -> str:
    return (secret_of(AGENT_TOKEN) if found[1] == AGENT_TOKEN else os.environ.get(found[1])) or ""


def _checked(answer: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(answer)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise HookTrialFailed(
            f"answer must be a JSON object, got {answer[:200]!r}", hint="run `vox-mesh hooks install` again"
        )
    return document
