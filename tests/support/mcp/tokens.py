"""Counting tokens as a model's tokenizer does, with a vocabulary that the package carries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tools.install_npm import run_node

_COUNT_S: Final = 60
_COUNT: Final = """
import { countTokens } from "gpt-tokenizer/encoding/o200k_base";
import { readFileSync } from "node:fs";
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((text) => countTokens(text))));
"""


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, by the encoding `o200k_base`."""
    ended = run_node(
        "--input-type=module", "--eval", _COUNT, stdin=json.dumps(list(texts)), timeout_s=_COUNT_S
    )
    assert ended.returncode == 0, ended.stderr
    counts: list[int] = json.loads(ended.stdout)
    return counts
