"""The ledger: which keys are forgotten at the database, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.nodes.clocks import Clock
from tests.support.running.examples import many
from tests.support.store.combining import adding, combining, outcome
from vox_mesh import Script, Statement
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner


def keys(start: int, count: int) -> list[str]:
    """Some keys; the ledger does not look into them."""
    return [str(number) for number in range(start, start + count)]


def test_a_key_is_remembered_for_a_minute_after_its_answer() -> None:
    clock = Clock()
    ledger = IdempotencyKeyPruner(clock)
    ledger.note_answered(keys(0, 5_000))
    clock.now += 60
    assert not ledger.due(may_prune_all=False).keys
    clock.now += 1
    due = ledger.due(may_prune_all=False).keys
    assert list(due) == keys(0, len(due))
    assert len(due) >= 256


def test_a_few_keys_are_not_worth_statements_of_their_own() -> None:
    clock = Clock()
    ledger = IdempotencyKeyPruner(clock)
    ledger.note_answered(keys(0, 100))
    clock.now += 1_000
    assert not ledger.due(may_prune_all=False).keys


def test_under_load_the_newest_sixteen_thousand_are_remembered() -> None:
    ledger = IdempotencyKeyPruner(Clock())
    ledger.note_answered(keys(0, 16_384 + 255))
    assert not ledger.due(may_prune_all=False).keys
    ledger.note_answered(keys(16_384 + 255, 400))
    due = ledger.due(may_prune_all=False).keys
    assert 256 <= len(due) <= 655
    assert list(due) == keys(0, len(due))


def test_what_was_due_stays_due_until_a_request_with_it_was_applied() -> None:
    clock = Clock()
    ledger = IdempotencyKeyPruner(clock)
    ledger.note_answered(keys(0, 600))
    clock.now += 61
    due = ledger.due(may_prune_all=False)
    assert ledger.due(may_prune_all=False) == due
    ledger.note_pruned(due)
    assert [key for _, key in ledger._answered] == keys(len(due.keys), 600 - len(due.keys))


def test_it_looks_back_for_what_was_left_behind_once_an_hour() -> None:
    clock = Clock()
    ledger = IdempotencyKeyPruner(clock)
    first = ledger.due(may_prune_all=True)
    assert first.older_than_s == 86_400
    assert ledger.due(may_prune_all=False).older_than_s is None
    ledger.note_pruned(first)
    clock.now += 3_599
    assert ledger.due(may_prune_all=True).older_than_s is None
    clock.now += 1
    assert ledger.due(may_prune_all=True).older_than_s == 86_400


@many
@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0, 50), st.booleans()), max_size=30))
def test_keys_are_forgotten_in_order_each_once_and_none_too_early(
    steps: list[tuple[int, float, bool]],
) -> None:
    clock = Clock()
    ledger = IdempotencyKeyPruner(clock)
    answered_at: list[float] = []
    forgotten: list[str] = []
    for count, pause, applied in steps:
        ledger.note_answered(keys(len(answered_at), count))
        answered_at += [clock.now] * count
        clock.now += pause
        due = ledger.due(may_prune_all=False)
        kept_newer = len(answered_at) - len(forgotten) - len(due.keys)
        for key in due.keys:
            assert answered_at[int(key)] < clock.now - 60 or kept_newer >= 16_384
        if applied:
            ledger.note_pruned(due)
            forgotten += due.keys
    assert forgotten == keys(0, len(forgotten))


async def test_old_keys_of_this_writer_and_of_commands_go_and_those_of_others_stay() -> None:
    async with combining() as c:
        fresh, old, others, commands = (adding(number) for number in range(4))
        await c.send(fresh, old, others, commands)
        age = "UPDATE script_results SET since_s = since_s - 90000, writer = ? WHERE script_key = ?"
        for script, writer in ((old, "writer"), (others, "another"), (commands, "command:x")):
            await c.send(Script(Statement(age, (writer, script.key))))
        c.ledger._fully_pruned_at -= 3_601
        await c.send(adding(9))
        again = [Script(Statement("SELECT 1"), key=each.key) for each in (fresh, old, others, commands)]
        assert [outcome(await c.send(each)).repeated for each in again] == [True, False, True, False]
