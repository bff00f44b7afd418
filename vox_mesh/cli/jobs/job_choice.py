"""The jobs that a command is about, as the command line names them."""

from __future__ import annotations

from typing import Final

import click

job_argument: Final = click.argument("reference", metavar="JOB")
kind_option: Final = click.option(
    "--kind", metavar="PATTERN", help="Only of this kind, or of those below it, as in 'cortex.*'."
)
limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="At most so many.",
)
