"""Any JSON document with comments, as a user may have written it."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

SPACES: Final = st.sampled_from(["", "", " ", "\n", "\n  ", "\r\n\t", "  ", "\n\n    "])
COMMENTS: Final = st.sampled_from(["// note\n", "/* a */", "/* two\nlines */", "// , ] }\r\n", "/**/"])
TRIVIA: Final = st.lists(st.one_of(SPACES, SPACES, COMMENTS), max_size=3).map("".join)
NAMES: Final = st.one_of(
    st.sampled_from(["hooks", "PreToolUse", "Stop", "version", "model", "mcpServers", "vox"]),
    st.text(max_size=5),
)
SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


@st.composite
def containers(draw: st.DrawFn, values: st.SearchStrategy[str], brackets: str) -> str:
    """Return an object or an array."""
    parts = []
    for value in draw(st.lists(values, max_size=4)):
        name = ""
        if brackets == "{}":
            name = json.dumps(draw(NAMES)) + draw(TRIVIA) + ":" + draw(TRIVIA)
        parts.append(draw(TRIVIA) + name + value + draw(TRIVIA))
    trailing = "," + draw(TRIVIA) if len(parts) > 0 and draw(st.booleans()) else ""
    inner = ",".join(parts) + trailing if parts else draw(TRIVIA)
    return brackets[0] + inner + brackets[1]


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(containers(values, "{}"), containers(values, "[]"))


VALUES: Final = st.recursive(SCALARS.map(json.dumps), _containers, max_leaves=12)


@st.composite
def pretty(draw: st.DrawFn) -> str:
    """Return a document as programs write it."""
    value: Any = draw(
        st.dictionaries(NAMES, st.recursive(SCALARS, lambda each: st.lists(each, max_size=3)), max_size=4)
    )
    return json.dumps(value, indent=draw(st.sampled_from([2, 4, "\t", None]))) + draw(
        st.sampled_from(["", "\n"])
    )


@st.composite
def with_hooks(draw: st.DrawFn) -> str:
    """Return a document that has hooks of its own."""
    groups = draw(
        containers(
            st.sampled_from(['{"hooks": []}', '{"matcher": "*", "hooks": [{"type": "command"}]}']), "[]"
        )
    )
    hooks = draw(containers(st.just(groups), "{}"))
    return (
        draw(TRIVIA) + '{"model": 1,' + draw(TRIVIA) + '"hooks":' + hooks + draw(TRIVIA) + "}" + draw(TRIVIA)
    )


@st.composite
def _any_document(draw: st.DrawFn) -> str:
    bom = draw(st.sampled_from(["", "", "\ufeff"]))
    return bom + draw(TRIVIA) + draw(containers(VALUES, "{}")) + draw(TRIVIA)


DOCUMENTS: Final = st.one_of(_any_document(), pretty(), with_hooks())
