#!/usr/bin/env python3
"""Answer a hook of an agent's host: ask a node of the mesh, and print its answer.

    vox_mesh_hook.py HOST [--agent NAME] [--auto] [--strict] [--project PATH] [--home PATH] [--wait]

The event is read from stdin, the answer is one JSON document on stdout, and the exit code is 0, whatever
happens: hosts take other codes for a denial. Only `--wait` ends with 2, with the text of new mail on stderr.

It needs Python 3.9 and nothing else. It imports little, because it runs before every edit, and the rest only
where something fails.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as `typing` has it, which is slow to import
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Iterator, Sequence
    from typing import Any
else:
    try:
        import _signal as signal
        import _socket as socket
    except ImportError:  # not CPython
        import signal
        import socket

HOSTS = ("claude", "codex", "gemini", "cursor", "copilot", "opencode")
DEADLINE_S = 3.0
WAIT_S = 60
MAX_WAITED_S = 12 * 3600
RETRY_S = 5.0
MAX_INPUT = 16 * 2**20
MAX_BODY = 256 * 2**10
MAX_FIELD = 4096
MAX_ANSWER = 2**20
MAX_TRANSCRIPT = 64 * 2**20
MAX_TOKEN = 4096
EDITORS = ("edit", "write", "patch", "create", "delete", "replace")
PATCH = "*** Begin Patch"
BEFORE = ("PreToolUse", "BeforeTool", "preToolUse", "beforeShellExecution", "tool.execute.before")


class HookFailed(Exception):
    """The mesh can't be asked."""


class HookArguments:
    """The arguments of the script."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.host = self.home = self.project = self.agent = ""
        self.auto = self.strict = self.wait = False
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            if word in ("--auto", "--strict", "--wait"):
                setattr(self, word[2:], True)
            elif word in ("--agent", "--home", "--project"):
                setattr(self, word[2:], rest.pop(0) if rest else "")
            elif not word.startswith("-") and not self.host:
                self.host = word
        self.home = self.home or own_home()
        self.agent = os.environ.get("VOX_AGENT_ID") or self.agent


def own_home() -> str:
    """Return the home of the mesh that this copy of the script is in; empty if it is elsewhere."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return home if os.path.isdir(os.path.join(home, "slots")) else ""


# --- the node ----------------------------------------------------------------------------------------


def addresses(given: HookArguments) -> Iterator[tuple[str, str]]:
    """Yield where a node may listen: in the home of the mesh, then where VOX_MESH_NODE says."""
    if given.home:
        slots = os.path.join(given.home, "slots")
        try:
            names = sorted(os.listdir(slots))
        except OSError:
            names = []
        for name in names:
            path = os.path.join(slots, name, "http.sock")
            if os.path.exists(path):
                yield "unix", path
    named = os.environ.get("VOX_MESH_NODE", "")
    if named.startswith("unix:"):
        yield "unix", named[5:]
    elif named.startswith("http://"):
        yield "tcp", named[7:].partition("/")[0]


def connect(given: HookArguments) -> socket.socket:
    """Return a connection to the first node that listens."""
    problem = "no node listens in %s" % given.home if given.home else "no node has run here"
    if given.home and not os.path.isdir(given.home):
        problem = "the home of the mesh, %s, does not exist" % given.home
    for kind, place in addresses(given):
        try:
            return connect_to(kind, place)
        except (OSError, ValueError) as error:
            problem = "node does not answer: %s" % error
    raise HookFailed(problem + "; start one with `vox-mesh up`")


def connect_to(kind: str, place: str) -> socket.socket:
    """Return a connection to a socket of this machine, or to a host and port."""
    if kind == "unix":
        found, target = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), place
    else:
        host, _, port = place.rpartition(":")
        known = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)
        family, sort, protocol, _, target = known[0]  # type: ignore[assignment]  # by its kind
        found = socket.socket(family, sort, protocol)
    found.settimeout(DEADLINE_S)
    try:
        found.connect(target)
    except BaseException:
        found.close()
        raise
    return found


def token_file(home: str, agent: str) -> str:
    """Return the file with the token of an agent; a name that is no file name is hashed."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    if len(agent) > 64 or agent[0] not in letters or agent.strip(letters + "_.-"):
        import hashlib  # imported late: most names are plain

        agent = hashlib.sha256(agent.encode("utf-8", "replace")).hexdigest()
    return os.path.join(home, "agents", agent + ".token")


def credentials(given: HookArguments) -> bytes:
    """Return the header that says who asks: the token of the agent, or else its name."""
    agent = given.agent
    token = os.environ.get("VOX_AGENT_TOKEN", "")
    path = os.environ.get("VOX_AGENT_TOKEN_FILE", "")
    if not token and not path and given.home and agent:
        path = token_file(given.home, agent)
        path = path if os.path.exists(path) else ""
    if not token and path:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                token = file.read(MAX_TOKEN)
        except OSError as error:
            raise HookFailed("token of the agent can't be read: %s" % error) from None
    token = token.strip()
    if token and token.isascii() and token.isprintable() and " " not in token:
        return b"Authorization: Bearer " + token.encode() + b"\r\n"
    if agent and agent.isprintable():
        return b"Vox-Agent: " + agent.encode("utf-8", "replace") + b"\r\n"
    return b""


def quoted(text: str) -> str:
    """Return a text as a value in a URL."""
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/"
    return "".join(chr(byte) if byte in safe else "%%%02X" % byte for byte in os.fsencode(text))


def ask(given: HookArguments, body: bytes, timeout_s: float) -> tuple[int, bytes]:
    """Send the event to a node; return the status and the body of its answer."""
    if given.wait:
        target = "/v1/hooks/%s/wait?timeout=%d" % (given.host, WAIT_S)
    else:
        query = ["%s=true" % name for name in ("auto", "strict") if getattr(given, name)]
        query += ["project=" + quoted(os.path.abspath(given.project))] if given.project else []
        target = "/v1/hooks/%s%s" % (given.host, "?" + "&".join(query) if query else "")
    head = "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % target
    head += "Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    own = credentials(given)
    connection = connect(given)
    try:
        connection.settimeout(timeout_s)
        connection.sendall(head.encode() + own + b"\r\n" + body)
        received = b""
        while len(received) <= MAX_ANSWER:
            part = connection.recv(65536)
            if not part:
                break
            received += part
    except OSError as error:
        raise HookFailed("node does not answer: %s" % error) from None
    finally:
        connection.close()
    return read_answer(received)


def read_answer(received: bytes) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    head, found, body = received.partition(b"\r\n\r\n")
    words = head.partition(b"\r\n")[0].split(b" ")
    size = [line[15:].strip() for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not found or len(words) < 2 or not words[1].isdigit() or size != [b"%d" % len(body)]:
        raise HookFailed("node sent no whole answer")
    return int(words[1]), body


# --- the event ---------------------------------------------------------------------------------------


def read_input() -> bytes:
    """Return the event as it came; what is longer than any event is cut off."""
    parts, size = [], 0
    while size < MAX_INPUT:
        part = os.read(0, 65536)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def parsed(raw: bytes) -> dict[str, Any]:
    """Return the event as an object; an empty one if it is none."""
    import json  # imported late: an answer of the node is passed on unread

    try:
        event = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def encoded(event: dict[str, Any]) -> bytes:
    """Return an event as JSON that every reader takes: lone surrogates are replaced."""
    import json  # imported late: most events are sent as they came

    return json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")


def shortened(value: Any) -> Any:
    """Return a value with its long texts cut. A patch is reduced to the lines that name files."""
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in list(value.items())[:256]}
    if isinstance(value, list):
        return [shortened(each) for each in value[:256]]
    if isinstance(value, str) and len(value) > MAX_FIELD:
        if PATCH in value:
            return "\n".join(line for line in value.split("\n") if line.lstrip().startswith("*** "))
        return value[:MAX_FIELD]
    return value


def prepared(given: HookArguments, raw: bytes) -> bytes:
    """Return the body of the request: the event as it came, unless it is too long or lacks something."""
    is_end = b"SessionEnd" in raw and given.host == "claude"
    if len(raw) <= MAX_BODY and not is_end:
        return raw
    event = parsed(raw)
    if event.get("hook_event_name") == "SessionEnd":
        usage = usage_of(event.get("transcript_path"))
        if usage:
            event["vox_mesh_usage"] = usage
    return encoded(event if len(raw) <= MAX_BODY else shortened(event))


def usage_of(path: object) -> dict[str, dict[str, int]] | None:
    """Return the tokens in a transcript of Claude Code, by model. It must be a file in the user's own home.

    Each message counts once, as its last line says. What was read from the cache is not counted.
    """
    if not isinstance(path, str) or not path.endswith(".jsonl") or "\0" in path:
        return None
    real, home = os.path.realpath(path), os.path.realpath(os.path.expanduser("~"))
    settings = os.path.realpath(os.environ.get("CLAUDE_CONFIG_DIR") or home)
    is_own = real.startswith((os.path.join(home, ""), os.path.join(settings, "")))
    if not is_own or not os.path.isfile(real):
        return None
    messages: dict[str, tuple[str, int, int]] = {}
    try:
        with open(real, encoding="utf-8", errors="replace") as file:
            for line in file.read(MAX_TRANSCRIPT).split("\n"):
                if '"usage"' in line:
                    note_usage(line, messages)
    except OSError:
        return None
    usage: dict[str, dict[str, int]] = {"input_tokens": {}, "output_tokens": {}}
    for model, read, written in messages.values():
        usage["input_tokens"][model] = usage["input_tokens"].get(model, 0) + read
        usage["output_tokens"][model] = usage["output_tokens"].get(model, 0) + written
    return usage if messages else None


def note_usage(line: str, messages: dict[str, tuple[str, int, int]]) -> None:
    """Note the usage that a line of a transcript reports, by the id of its message."""
    message = parsed(line.encode("utf-8", "replace")).get("message")
    usage = message.get("usage") if isinstance(message, dict) else None
    model = message.get("model") if isinstance(message, dict) else None
    is_model = isinstance(model, str) and 0 < len(model) <= 128 and not model.startswith("<")
    if isinstance(message, dict) and isinstance(usage, dict) and is_model:
        read = count(usage.get("input_tokens")) + count(usage.get("cache_creation_input_tokens"))
        messages[str(message.get("id"))] = (str(model), read, count(usage.get("output_tokens")))


def count(value: object) -> int:
    """Return a number of tokens; 0 if it is none."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
    return int(str(value)) if is_count else 0


# --- when the mesh can't be asked --------------------------------------------------------------------


def concern(event: dict[str, Any]) -> str:
    """Return whether an event asks for a decision ("before"), begins a session ("start"), or neither ("")."""
    inner = event.get("event")
    name = str(event.get("hook_event_name") or event.get("hook") or "")
    name = str(inner.get("type")) if isinstance(inner, dict) else name
    if name.lower() in ("sessionstart", "session.created"):
        return "start"
    if name not in BEFORE and (name or "toolName" not in event or "toolResult" in event):
        return ""
    given = event.get("input")
    source = given if isinstance(given, dict) else event
    tool = str(source.get("tool_name") or source.get("toolName") or source.get("tool") or "").lower()
    if any(word in tool for word in EDITORS):
        return "before"
    text = str(event)
    return "before" if PATCH in text or ("git" in text and "commit" in text) else ""


def without_answer(given: HookArguments, raw: bytes, why: str) -> str:
    """Return the answer without the mesh: the host goes on and says so; if it is strict, deny."""
    event = parsed(raw)
    asked = concern(event) if event else "before"
    text = "vox-mesh: locks not checked: " + " ".join(why.split())[:400]
    if asked == "before" and given.strict:
        return encoded(denial(given.host, text)).decode()
    return encoded(note(given.host, text, asked) if asked else {}).decode()


def denial(host: str, text: str) -> dict[str, Any]:
    """Return a denial in the form of a host."""
    if host == "gemini":
        return {"decision": "deny", "reason": text}
    if host == "cursor":
        shown = "vox-mesh: another agent holds this file, or locks could not be checked"
        return {"permission": "deny", "user_message": shown, "agent_message": text}
    if host == "copilot":
        return {"permissionDecision": "deny", "permissionDecisionReason": text}
    if host == "opencode":
        return {"deny": text}
    decided = {"permissionDecision": "deny", "permissionDecisionReason": text}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decided}}


def note(host: str, text: str, asked: str) -> dict[str, Any]:
    """Return a note for the person at a host, in its form."""
    if host == "cursor":
        return {"user_message": text} if asked == "before" else {}
    if host == "copilot":
        return {"type": "progress", "message": text}
    return {"note": text} if host == "opencode" else {"systemMessage": text}


# --- running -----------------------------------------------------------------------------------------


def answer(given: HookArguments, raw: bytes) -> str:
    """Return the answer of a node to an event, as JSON."""
    status, body = ask(given, prepared(given, raw), DEADLINE_S)
    if status == 400 and parsed(raw):  # it holds text that is no Unicode
        status, body = ask(given, encoded(shortened(parsed(raw))), DEADLINE_S)
    if status == 200 and body.startswith(b"{"):
        return body.decode("utf-8", "replace")
    problem = parsed(body)
    if status == 401:  # the node's own advice is for its owner
        raise HookFailed("node refuses the token of the agent; renew it with `vox-mesh setup`")
    raise HookFailed(
        "node answered %d: %s; %s" % (status, problem.get("detail", ""), problem.get("hint", ""))
    )


def wait(given: HookArguments, raw: bytes) -> str:
    """Wait for mail, until a newer waiter comes or the host is gone; return the text that wakes the agent."""
    import time  # imported late: only waiters need it

    if os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-"):
        return ""  # no person waits there, and `claude -p` would end only after the waiter
    parsed(b"{}")  # imports JSON before the wait: mail wakes the agent sooner
    parent, ends_at = os.getppid(), time.monotonic() + MAX_WAITED_S
    while time.monotonic() < ends_at and os.getppid() == parent:
        try:
            status, body = ask(given, prepared(given, raw), WAIT_S + DEADLINE_S)
        except HookFailed:
            status, body = 503, b""
        found = parsed(body) if status == 200 else {}
        if found.get("text"):
            return str(found["text"])
        if found.get("superseded") or 400 <= status < 500 or not os.path.isdir(given.home or "/"):
            break
        if status != 200:
            time.sleep(RETRY_S)
    return ""


def late(number: int, frame: object) -> None:
    """End the work at the deadline."""
    raise HookFailed("no answer within %g s" % DEADLINE_S)


def write(descriptor: int, text: str) -> None:
    """Write a line in UTF-8; a host that no longer reads is no error."""
    left = text.encode("utf-8", "replace") + b"\n"
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        pass


def run(arguments: Sequence[str]) -> int:
    """Run the hook; return the exit code."""
    raw, given = b"", HookArguments(arguments)
    try:
        if not given.wait:
            signal.signal(signal.SIGALRM, late)
            signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
        raw = read_input()
        if given.host not in HOSTS:
            raise HookFailed("host must be one of %s, got %r" % (", ".join(HOSTS), given.host[:40]))
        if given.wait:
            mail = wait(given, raw)
            write(2 if mail else 1, mail or "{}")
            return 2 if mail else 0
        text = answer(given, raw)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except KeyboardInterrupt:
        text = "{}"
    except Exception as error:  # whatever it is, the host must be able to go on
        if not given.wait:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        why = str(error) if isinstance(error, HookFailed) else "%s: %s" % (type(error).__name__, error)
        text = "{}" if given.wait else without_answer(given, raw, why)
    write(1, text)
    return 0


if __name__ == "__main__":
    os._exit(run(sys.argv[1:]))  # nothing is buffered, and tearing the interpreter down takes milliseconds
