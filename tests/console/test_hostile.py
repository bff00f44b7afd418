"""Text of agents that is meant to harm: it is shown as text wherever it is shown, and breaks no page."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.console.additions import add_approval, add_conflict, add_dead_letter, new_name
from tests.support.console.watched_page import NARROW, WatchedPage
from tools.fleet.fleet import Fleet, report, schedule, send_message, take, take_soon
from vox_mesh.model.jobs.manifest_fields import MAX_JSON_BYTES
from vox_mesh.model.messages.records import MAX_PAYLOAD_BYTES

_MARKUP: Final = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"><b id=hurt>bold</b>'
_UNSEEN: Final = "\u202eeman\u2066\u200b\u0085\u00ad\ufeff\u061c\u2028\U000e0041\x1b[31m\x07\x7f\t"
_HOSTILE: Final = f"{_MARKUP} {_UNSEEN} ${{7*7}} {{{{7*7}}}} javascript:alert(1)"
_NAME: Final = '<i onclick="window.hurt=1">mallory</i>'
_LONG: Final = 1_000_000
"""The longest line, which only logs take. Messages and payloads are refused above a quarter of that."""

_ROOM: Final = 4_000
"""What is left for the rest of a message or a payload that is as long as the node admits."""

_MOST_SHOWN: Final = 300_000
"""Characters in a page, however much there is to show."""

_FAULTS: Final = r"""() => {
  const control = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f";
  const hidden = "\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\u{e0000}-\\u{e007f}";
  const unseen = new RegExp(`[${control}${hidden}]`, "u");
  const found = window.hurt === undefined ? [] : ["a script ran"];
  for (const each of document.querySelectorAll("#hurt, main img, main script, [onclick], [onerror]"))
    found.push(`made of text: ${each.outerHTML.slice(0, 100)}`);
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    if (unseen.test(node.data)) found.push(`unseen: ${node.parentElement.outerHTML.slice(0, 200)}`);
  for (const each of document.querySelectorAll("[title]"))
    if (unseen.test(each.title)) found.push(`unseen in a title: ${each.outerHTML.slice(0, 200)}`);
  return found;
}"""


class Hostile(NamedTuple):
    """Ids of what an agent with bad intentions has left, and a name in all of it."""

    mark: str
    failed: str
    running: str
    message: str
    conflict: str
    question: str
    approval: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile(fleet: Fleet) -> Hostile:
    """Everything that an agent may write, written to harm."""
    node, mark = fleet.node, new_name("evil")
    text = f"{mark} {_HOSTILE}"
    payload = {"text": text, _MARKUP: [text], "line": "x" * (MAX_JSON_BYTES - _ROOM)}
    await schedule(node, {"kind": mark, "payload": payload, "max_attempts": 1}, agent=_NAME)
    failed, token = await take(node, mark, _NAME)
    await _log(fleet, failed, token, f"{text}\n{'y' * _LONG}\n")
    artifact = {"claim_token": token, "name": "a.html", "type": "text/html", "text": _MARKUP}
    await node.send(f"/v1/jobs/{failed}/artifacts", artifact, agent=_NAME)
    await report(node, failed, token, _NAME, "failed", reason=text, retry=False)
    await schedule(node, {"kind": f"{mark}.run"})
    running, token = await take_soon(node, f"{mark}.run", _NAME)
    progress = {"claim_token": token, "fraction": 0.5, "message": text[:400]}
    await node.send(f"/v1/jobs/{running}/progress", progress, agent=_NAME)
    await _log(fleet, running, token, f"{text}\n{'z' * _LONG}")
    await schedule(node, {"kind": f"{mark}.ask"})
    question, token = await take_soon(node, f"{mark}.ask", _NAME)
    asked = {"text": text, "choices": [_MARKUP, f"{_UNSEEN.strip()} ok"]}
    await report(node, question, token, _NAME, "needs_input", question=asked)
    long_text = f"{text} {'m' * (MAX_PAYLOAD_BYTES - _ROOM)}"
    message = await send_message(node, _NAME, "victim", {"text": long_text})
    (first,) = await schedule(node, {"kind": f"{mark}.first", "payload": text})
    await schedule(node, {"kind": f"{mark}.then", "payload": text, "after": [first]})
    approval = await add_approval(fleet, f"{mark}.asked", {"text": text, _MARKUP: text})
    await add_dead_letter(fleet, {"text": text})
    await node.send("/v1/locks", {"keys": [f"task:{mark} {_MARKUP}"], "agent": _NAME, "ttl": "1h"})
    await node.send("/v1/rhythm/help", {"to": _NAME, "body": text, "agent": "planner"})
    await node.send(
        "/v1/budgets", {"subject": f"agent:<b/id=hurt>{mark}", "budget": {"max_tokens": 9}}, method="PUT"
    )
    status = {"agent_id": _NAME, "task_id": f"{mark} {_MARKUP}", "state": "executing", "progress": 0.5}
    await node.send("/v1/rhythm/status", status)
    conflict = await add_conflict(fleet, text + "c" * 200_000, name=mark)
    return Hostile(mark, failed, running, message, conflict.conflict_id, question, approval)


async def _log(fleet: Fleet, job: str, token: int, text: str) -> None:
    size = 50_000
    for start in range(0, len(text), size):
        body = {"claim_token": token, "text": text[start : start + size]}
        await fleet.node.send(f"/v1/jobs/{job}/log", body, agent=_NAME)


SCREENS: Final[tuple[tuple[str, str], ...]] = (
    ("", "Needs you"),
    ("fleet?find=mallory", "Fleet"),
    ("agent/%3Ci%20onclick%3D%22window.hurt%3D1%22%3Emallory%3C%2Fi%3E", "mallory"),
    ("jobs?kind={mark}*", "Jobs"),
    ("jobs?view=board&kind={mark}*", "Jobs"),
    ("jobs?view=graph", "Jobs"),
    ("job/{failed}", "{mark}"),
    ("job/{running}", "{mark}"),
    ("job/{question}", "{mark}"),
    ("locks?agent=%3Ci%20onclick%3D%22window.hurt%3D1%22%3Emallory%3C%2Fi%3E", "Locks"),
    ("messages", "Messages"),
    ("messages/{message}", "Messages"),
    ("messages?view=dead", "Messages"),
    ("conflicts", "Conflicts"),
    ("conflicts/{conflict}", "Conflict"),
    ("rhythm", "Rhythm"),
    ("costs", "Costs"),
    ("log?kind=CompleteJob", "Log"),
    ("log?job={failed}", "Log"),
    ("approval/{approval}", "Approval"),
    ("health", "Health"),
)
_OF_NOBODY: Final = "health"
"""The screen that names no agent and no job: there, only what the node says of itself is waited for."""


@pytest.mark.parametrize(("path", "title"), SCREENS, ids=[each[0] or "needs" for each in SCREENS])
async def test_hostile_text_is_shown_as_text(
    signed_in: WatchedPage, hostile: Hostile, path: str, title: str
) -> None:
    page, named = signed_in.page, hostile._asdict()
    await signed_in.show(path.format(**named), title.format(**named))
    main = page.locator("main")
    await main.get_by_text("Loading…").first.wait_for(state="detached")
    said = main.get_by_text(hostile.mark).or_(main.get_by_text("mallory"))
    marker = main.get_by_text("Circuit breaker") if path == _OF_NOBODY else said
    await marker.first.wait_for(state="attached")
    assert await page.evaluate(_FAULTS) == []
    assert await page.evaluate("document.body.textContent.length") < _MOST_SHOWN
    assert await signed_in.overflowing() == []
    await page.set_viewport_size(NARROW)
    assert await signed_in.overflowing() == []


async def test_a_long_text_is_opened_only_in_part(signed_in: WatchedPage, hostile: Hostile) -> None:
    page = signed_in.page
    await signed_in.show(f"messages/{hostile.message}", "Messages")
    await page.get_by_role("button", name="Show 2").first.click()
    await expect(page.get_by_role("button", name="Show 2")).to_have_count(0)
    assert await page.evaluate("document.body.textContent.length") < _MOST_SHOWN
    assert await page.evaluate(_FAULTS) == []


async def test_a_hostile_address_shows_a_screen(signed_in: WatchedPage) -> None:
    page = signed_in.page
    job, entry = "/v1/jobs/%3Cscript%3Ewindow.hurt%3D1%3C%2Fscript%3E", "/v1/oplog/%E2%80%AE%3Cimg%3E"
    signed_in.allow_refusal(HTTPStatus.NOT_FOUND, entry, f"{entry}/causes", f"{entry}/authenticity")
    signed_in.allow_refusal(HTTPStatus.UNPROCESSABLE_ENTITY, job, "/v1/oplog")
    addresses: dict[str, Any] = {
        "job/%3Cscript%3Ewindow.hurt=1%3C/script%3E": "Job",
        "%3Cscript%3E": "Not found",
        "__proto__": "Not found",
        "constructor": "Not found",
        "log?op=%E2%80%AE%3Cimg%3E&kind=%00": "Log",
    }
    for path, title in addresses.items():
        await signed_in.show(path, title, is_loaded=True)
        assert await page.evaluate(_FAULTS) == [], path


@pytest.mark.parametrize("form", ["message", "job"])
async def test_a_text_that_is_longer_than_the_node_admits_is_refused_in_the_form(
    signed_in: WatchedPage, fleet: Fleet, form: str
) -> None:
    """A line of a megabyte reaches no message and no payload; the form keeps it, and says the limit."""
    page, name = signed_in.page, new_name("long")
    line = "x" * _LONG
    path, most = ("/v1/messages", MAX_PAYLOAD_BYTES) if form == "message" else ("/v1/jobs", MAX_JSON_BYTES)
    signed_in.allow_refusal(HTTPStatus.UNPROCESSABLE_ENTITY, path)
    if form == "message":
        await signed_in.show(f"messages?write=1&to={name}", "Messages")
        field = page.get_by_label("Text")
        await field.fill(line)
        await page.get_by_role("button", name="Send").click()
    else:
        await signed_in.show(f"jobs?new=1&kind={name}", "Jobs")
        field = page.get_by_label("Payload")
        await field.fill(f'"{line}"')
        await page.get_by_role("dialog").get_by_role("button", name="Schedule").click()
    await expect(page.get_by_role("alert")).to_contain_text(f"{most}")
    assert line in await field.input_value()
    query = {"receiver": name} if form == "message" else {"kind": name}
    assert (await fleet.node.get(path, **query))["items"] == []
