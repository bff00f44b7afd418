"""Paths in settings: relative ones of a `.env` file are relative to its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vox_mesh.settings.fields import FIELD_OF, FIELDS, Kind
from vox_mesh.settings.secrets import FILE_SUFFIX

FILE_URL: Final = "file:"
"""The scheme of a database file in VOX_DB_URL."""


def file_url_path(url: str) -> str:
    """Return the path in a `file:` URL, with or without slashes for the absent host."""
    from urllib.parse import unquote, urlsplit  # imported late: most commands use no URL

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        return unquote(parts.netloc + parts.path)
    return unquote(parts.path)


def resolved_in(folder: Path, variable: str, text: str) -> str:
    """Return the value of a variable in a `.env` file of this folder; only paths are changed."""
    field = FIELDS.get(FIELD_OF.get(variable, ""))
    if variable.endswith(FILE_SUFFIX) or (field is not None and field.kind is Kind.PATH):
        return str(folder / text)
    if variable == FIELDS["db_urls"].variable and text.startswith(("./", "../")):
        return str(folder.absolute() / text)
    if text.startswith(FILE_URL) and variable == FIELDS["db_url"].variable and (path := file_url_path(text)):
        from urllib.parse import quote

        return text if folder == Path() else FILE_URL + quote(str(folder / path))
    return text
