"""A command with a fault in it."""

from __future__ import annotations

import click


@click.command()
def broken() -> None:
    """Fail in a way that no one foresaw."""
    raise ZeroDivisionError("one\ntwo")
