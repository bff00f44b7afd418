"""`vox-mesh rhythm help`: ask for help, promise it, answer, and withdraw a promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final, TypeVar

import click
import orjson

from vox_mesh.cli.support.body import body_of
from vox_mesh.cli.support.options import acting_agent
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    details_option,
    json_option,
    printable,
    show_done,
    show_lines,
    show_one,
    show_several,
)
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_quickly
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.promises import MAX_HELP_BEATS, HelpState, HelpThread, thread_of
from vox_mesh.rhythm.help import Help
from vox_mesh.store.acting import acting_as

Result = TypeVar("Result")

_MAX_LIMIT: Final = 10_000
_AGENT: Final = click.option(
    "--from", "--agent", "agent", metavar="AGENT", help="Agent that acts.", show_default="VOX_AGENT_ID"
)
_TEXT: Final = click.option(
    "--text", "is_text", is_flag=True, help="Send BODY as text, even if it looks like JSON."
)
_BEATS: Final = click.IntRange(1, MAX_HELP_BEATS)


@click.group("help", cls=CommandGroup, no_args_is_help=False)
def help_group() -> None:
    """Ask other agents for help, and promise and give it.

    THREAD is the id of a help thread, which `ask` prints and the request carries, or hmmm://thread/ID.
    """


@help_group.command()
@click.argument("to")
@click.argument("body", metavar="BODY|-")
@click.option(
    "--within",
    "within_beats",
    type=_BEATS,
    metavar="BEATS",
    help="Beats to wait for a promise or an answer.",
    show_default="a bar",
)
@click.option("--task", metavar="TASK", default="", help="Task that needs the help.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the answer and print it.")
@_TEXT
@_AGENT
@details_option
@json_option
def ask(
    to: str,
    body: str,
    within_beats: int | None,
    task: str,
    waits: bool,
    is_text: bool,
    agent: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Ask an agent or a role for help.

    TO is an agent or `role:NAME`. A BODY that is a JSON object or array is sent as JSON, everything else as
    text; `-` reads it from stdin. The thread closes without a promise or an answer in time. With --wait a
    thread that closes without an answer ends with 1.

    \b
    Example:
      vox-mesh rhythm help ask reviewer '{"pr": 42}' --from coder --within 8
    """
    value = body_of(body, is_text=is_text)

    async def work(help_: Help, sender: str) -> tuple[HelpThread, Message | None]:
        thread = await help_.ask(to, value, sender=sender, within_beats=within_beats, task=task)
        return thread, await help_.wait(thread) if waits else None

    thread, answer = _run("rhythm help ask", agent, work)
    if answer is not None:
        _show_answer(answer, as_json=as_json)
        return
    closes = f"closes {iso_of(thread.closes_ms)} without a promise or an answer"
    line = f"asked {to} for help; {closes} (thread {thread.thread_id})"
    show_done(asdict(thread), line, as_json=as_json, verbose=verbose)


def _show_answer(answer: Message, *, as_json: bool) -> None:
    if as_json:
        show_one(
            {"thread_id": answer.thread, "helper": answer.sender_agent, "answer": answer.body}, as_json=True
        )
    else:
        text = answer.body if isinstance(answer.body, str) else orjson.dumps(answer.body).decode()
        show_lines([printable(line) for line in text.splitlines()] or [""])


@help_group.command()
@click.argument("thread")
@click.option(
    "--beats", "promise_beats", type=_BEATS, metavar="N", required=True, help="Beats until the answer."
)
@click.option(
    "--fail-after",
    "fail_after_beats",
    type=_BEATS,
    metavar="N",
    help="Beats after which the thread closes.",
    show_default="as --beats",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1),
    metavar="P",
    default=1.0,
    show_default=True,
    help="Confidence, from 0 to 1.",
)
@click.option("--on-fail", metavar="NAME", default="", help="Fallback for the asker.")
@_AGENT
@details_option
@json_option
def promise(
    thread: str,
    promise_beats: int,
    fail_after_beats: int | None,
    confidence: float,
    on_fail: str,
    agent: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Promise an answer within a number of beats.

    One agent may promise, and only that agent may answer then.

    \b
    Example:
      vox-mesh rhythm help promise 01M7PGVP3T0WAA1GGA49SA0ZAF --beats 2 --fail-after 3 --from reviewer
    """

    async def work(help_: Help, sender: str) -> HelpThread:
        await help_.promise(
            thread,
            promise_beats=promise_beats,
            fail_after_beats=fail_after_beats,
            confidence=confidence,
            on_fail=on_fail,
            sender=sender,
        )
        return await help_.state(thread)

    done = _run("rhythm help promise", agent, work, thread)
    due = f"an answer until {iso_of(done.due_ms or done.closes_ms)} keeps it"
    _show_thread(done, f"promised help to {done.asker}; {due}", as_json=as_json, verbose=verbose)


@help_group.command()
@click.argument("thread")
@click.argument("body", metavar="BODY|-")
@_TEXT
@_AGENT
@details_option
@json_option
def answer(thread: str, body: str, is_text: bool, agent: str | None, verbose: bool, as_json: bool) -> None:
    """Answer a request for help.

    A promise is kept if the answer is in time, else broken.

    \b
    Example:
      vox-mesh rhythm help answer 01M7PGVP3T0WAA1GGA49SA0ZAF 'looks good' --from reviewer
    """
    value = body_of(body, is_text=is_text)

    async def work(help_: Help, sender: str) -> HelpThread:
        await help_.answer(thread, value, sender=sender)
        return await help_.state(thread)

    done = _run("rhythm help answer", agent, work, thread)
    _show_thread(done, f"answered {done.asker}: {done.state}", as_json=as_json, verbose=verbose)


@help_group.command()
@click.argument("thread")
@click.option("--reason", metavar="TEXT", default="", help="Reason, for the asker.", show_default="none")
@_AGENT
@details_option
@json_option
def withdraw(thread: str, reason: str, agent: str | None, verbose: bool, as_json: bool) -> None:
    """Withdraw a promise: it counts as broken.

    The asker stops waiting.

    \b
    Example:
      vox-mesh rhythm help withdraw 01M7PGVP3T0WAA1GGA49SA0ZAF --reason "no time" --from reviewer
    """

    async def work(help_: Help, sender: str) -> HelpThread:
        await help_.withdraw(thread, reason=reason, sender=sender)
        return await help_.state(thread)

    done = _run("rhythm help withdraw", agent, work, thread)
    _show_thread(done, f"withdrew the promise to {done.asker}", as_json=as_json, verbose=verbose)


@help_group.command()
@click.argument("thread")
@json_option
def show(thread: str, as_json: bool) -> None:
    """Show a help thread.

    \b
    Example:
      vox-mesh rhythm help show 01M7PGVP3T0WAA1GGA49SA0ZAF
    """
    thread_of(thread)
    show_one(
        asdict(run_command("rhythm help show", lambda mesh: mesh.rhythm.help.state(thread))), as_json=as_json
    )


@help_group.command("list")
@click.option("--state", type=click.Choice([state.value for state in HelpState]), help="Only in this state.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    default=100,
    show_default=True,
    help="Maximum number of threads, newest first.",
)
@json_option
def list_(state: str | None, limit: int, as_json: bool) -> None:
    """List the requests for help, newest first.

    \b
    Example:
      vox-mesh rhythm help list --state promised
    """
    wanted = None if state is None else HelpState(state)
    found = run_command("rhythm help list", lambda mesh: mesh.rhythm.help.listed(state=wanted, limit=limit))
    show_several([asdict(each) if as_json else _line(each) for each in found], as_json=as_json)


def _line(thread: HelpThread) -> Record:
    """Return a thread's row of the table."""
    return {
        "thread": thread.thread_id,
        "asker": thread.asker,
        "asked of": thread.asked_of,
        "task": thread.task_id,
        "state": thread.state,
        "helper": thread.helper,
        "asked": iso_of(thread.asked_ms),
        "due": None if thread.due_ms is None else iso_of(thread.due_ms),
        "closes": iso_of(thread.closes_ms),
        "on fail": thread.on_fail,
    }


def _show_thread(thread: HelpThread, line: str, *, as_json: bool, verbose: bool) -> None:
    show_done(asdict(thread), f"{line} (thread {thread.thread_id})", as_json=as_json, verbose=verbose)


def _run(
    command: str,
    agent: str | None,
    work: Callable[[Help, str], Awaitable[Result]],
    thread: str | None = None,
) -> Result:
    """Run the work of an agent on the mesh, with its current tempo."""
    settings = start_quickly(command)
    sender = acting_agent(agent, settings, "--from")
    if thread is not None:
        thread_of(thread)

    async def run(mesh: Mesh) -> Result:
        await mesh.rhythm.refresh()
        with acting_as(sender):
            return await work(mesh.rhythm.help, sender)

    return asyncio.run(run_on_mesh(settings, run))
