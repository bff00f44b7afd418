"""The screen of messages: conversations, writing as yourself, and dead letters."""

from __future__ import annotations

from http import HTTPStatus

from playwright.async_api import expect

from tests.support.console.additions import add_dead_letter
from tests.support.console.watched_page import NARROW, WatchedPage
from tools.fleet.fleet import Fleet, send_message


async def test_message_of_a_person_arrives_and_is_answered_in_its_thread(
    fleet: Fleet, signed_in: WatchedPage
) -> None:
    """The agent receives it in the person's name; its answer and its acknowledgement appear by themselves."""
    page, agent, node = signed_in.page, "writer", fleet.node
    await signed_in.show(f"messages?write=1&to={agent}", "Messages")
    await page.get_by_label("Text").fill("Is the copy ready? <b>Today</b>, please.")
    await page.get_by_label("Priority").select_option("urgent")
    await page.get_by_role("button", name="Send").click()
    talk = page.get_by_role("region", name="Conversation")
    await expect(talk).to_contain_text("not received")

    (claimed,) = await node.send(f"/v1/inbox/{agent}/claim", {"limit": 1})
    assert (claimed["sender_agent"], claimed["priority"]) == ("person:alice", 3)
    assert claimed["payload"] == {"text": "Is the copy ready? <b>Today</b>, please."}
    uuid = claimed["message_uuid"]
    await expect(talk).to_contain_text("received")
    await node.send(f"/v1/messages/{uuid}/ack", {"claim_owner": claimed["claim_owner"]})
    await expect(talk).to_contain_text("acknowledged")
    answer = {"thread": uuid, "reply_to": uuid}
    await send_message(node, agent, "person:alice", {"text": "Almost."}, **answer)
    await expect(talk).to_contain_text("Almost.")
    await expect(talk).to_contain_text("not signed")

    await talk.get_by_placeholder("Your answer").fill("Good.")
    await talk.get_by_role("button", name="Send").click()
    await expect(talk.get_by_role("listitem").filter(has_text="Good.")).to_be_visible()
    (reply,) = (await node.get(f"/v1/inbox/{agent}"))["items"]
    assert (reply["payload"], reply["thread_id"]) == ({"text": "Good."}, uuid)

    await page.get_by_role("link", name="For you").click()
    await page.get_by_role("button", name="Acknowledge all").click()
    await expect(page.get_by_role("button", name="Acknowledge all")).to_have_count(0)
    assert (await node.get("/v1/messages", receiver="person:alice", state="stored"))["items"] == []


async def test_person_writes_to_everyone_and_to_a_role(fleet: Fleet, signed_in: WatchedPage) -> None:
    """Each agent gets a message of its own; a wrong receiver is refused in the form, which keeps the text."""
    page = signed_in.page
    await signed_in.show("messages?write=1&to=*", "Messages")
    await page.get_by_label("Text").fill("The shop closes at six.")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("Sent to")).to_be_visible()
    sent = (await fleet.node.get("/v1/messages", sender="person:alice"))["items"]
    to = {each["receiver_agent"] for each in sent if each["payload"] == {"text": "The shop closes at six."}}
    assert {"pager", "runner"} <= to

    signed_in.allow_refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "/v1/messages")
    await page.get_by_role("link", name="Write a message").click()
    await page.get_by_role("combobox", name="To An agent").fill("role:")
    await page.get_by_label("Text").fill("Who reviews?")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_role("combobox", name="To An agent").fill("role:proofreader")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("region", name="Conversation")).to_contain_text("role:proofreader")
    (asked,) = (await fleet.node.get("/v1/messages", receiver="role:proofreader"))["items"]
    assert asked["payload"] == {"text": "Who reviews?"}


async def test_dead_letter_is_retried_from_its_conversation(fleet: Fleet, signed_in: WatchedPage) -> None:
    """It shows why it died; once it is retried, it waits in the inbox again."""
    page, text = signed_in.page, "the backup is late"
    dead = await add_dead_letter(fleet, {"text": text})
    await signed_in.show("messages?view=dead", "Messages")
    await page.get_by_role("link").filter(has_text=text).click()
    talk = page.get_by_role("region", name="Conversation")
    await expect(talk).to_contain_text("no such pager")
    await talk.get_by_role("button", name="Retry").click()
    await expect(talk).to_contain_text("not received")
    await expect(page.get_by_role("link").filter(has_text=text)).to_have_count(0)
    assert (await fleet.node.get(f"/v1/messages/{dead}"))["state"] == "stored"


async def test_read_only_person_sees_who_writes_to_whom_but_no_text(
    reader: WatchedPage,
) -> None:
    """On a narrow page, a conversation has the room of the list, and a way back to it."""
    page = reader.page
    await page.set_viewport_size(NARROW)
    await reader.show("messages?view=overdue", "Messages")
    await page.get_by_role("link").filter(has_text="reviewer").click()
    talk = page.get_by_role("region", name="Conversation")
    await expect(talk).to_contain_text("overdue")
    await expect(talk).to_contain_text("Hidden")
    await expect(talk).not_to_contain_text("Please review today.")
    for name in ("Send", "Write a message", "Retry"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    await page.get_by_role("link", name="All conversations").click()
    await expect(page.get_by_role("link").filter(has_text="planner").first).to_be_visible()
