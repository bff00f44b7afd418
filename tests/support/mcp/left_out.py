"""Scenarios and checks of the conformance suite that are left out, each with its reason.

A scenario, or `SCENARIO:CHECK`. The test fails if one of them would pass.
"""

from __future__ import annotations

from typing import Final

_SKILLS: Final = "extension for skills: not offered, a skill is a file that `vox-mesh setup` writes"
_OF_HTTP: Final = "about headers or sessions of HTTP, which a pipe does not have"

NODE: Final = {
    "sep-2640-skills-directory": _SKILLS,
    "sep-2640-skills-enumeration": _SKILLS,
    "sep-2640-skills-manifest": _SKILLS,
    "server-sse-polling": "optional: a broken stream is not resumed, the client asks again",
    "tasks-status-notifications": "optional: no notices of tasks are sent, `tasks/get` waits for a change",
    "tasks-mrtr-input:tasks-mrtr-partial-fulfillment": "a job asks one question at a time",
}
"""Left out at every node."""

STDIO: Final = {
    **NODE,
    "dns-rebinding-protection": _OF_HTTP,
    "http-header-validation": _OF_HTTP,
    "http-custom-header-server-validation": _OF_HTTP,
    "tasks-request-headers": _OF_HTTP,
    "server-stateless:sep-2575-http-server-header-mismatch-400": _OF_HTTP,
}
"""Left out through `vox-mesh mcp`, which the suite reaches by a bridge."""
