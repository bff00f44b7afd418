"""The body of a message on the command line."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.errors import BadValue, NotJson
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.messages.records import MAX_PAYLOAD_BYTES

_STDIN: Final = "-"
_MAX_READ: Final = 4 * MAX_PAYLOAD_BYTES  # JSON shrinks when its spaces and escapes are removed


def body_of(argument: str, *, is_text: bool = False) -> Any:
    """Return the body: a JSON object or array, or the text; `-` reads it from stdin."""
    text = _read() if argument == _STDIN else argument
    if not is_text and text.lstrip()[:1] in ("{", "["):
        try:
            return read_json(text)
        except NotJson:
            pass
    return text


def _read() -> str:
    """Read the body from stdin."""
    try:
        with open(0, "rb", closefd=False) as stdin:
            data = stdin.read(_MAX_READ + 1)
    except OSError as error:
        raise BadValue(
            f"stdin can't be read: {error.strerror}", hint="redirect a file or a pipe to stdin"
        ) from None
    if len(data) > _MAX_READ:
        raise BadValue(
            f"stdin must have at most {_MAX_READ} bytes",
            hint="store the data elsewhere and send its location",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"stdin must be UTF-8: {error}", hint="encode it, such as in base64") from None
