"""Usage: all that an attempt reports of what it has used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.model.rhythm.costs import NOTHING, Resources
from vox_mesh.model.rhythm.tokens import NO_TOKENS, TOKEN_FIELDS, TokenUsage


class Usage(NamedTuple):
    """Resources of machines, and tokens of language models."""

    resources: Resources = NOTHING
    tokens: TokenUsage = NO_TOKENS

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Usage:
        """Return the usage of a report such as `{"input_tokens": 900, "model": "m", "gpu_sec": {…}}`.

        Raises `BadValue` if it is malformed.
        """
        about_tokens = {name: value for name, value in document.items() if name in TOKEN_FIELDS}
        rest = {name: value for name, value in document.items() if name not in TOKEN_FIELDS}
        return cls(
            Resources.of(rest) if rest else NOTHING,
            TokenUsage.of(about_tokens) if about_tokens else NO_TOKENS,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the usage as a report has it; empty if nothing was used."""
        return {**(self.tokens.as_json() if self.tokens else {}), **self.resources.as_json()}


NO_USAGE: Final = Usage()
"""Nothing was reported."""
