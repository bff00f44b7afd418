"""Grants: one text for each, signed documents, and delegations that never widen what an agent may do."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import UlidSource
from vox_mesh.model.grants.capability import ACTIONS, EXECUTE, Act, Capability, RateLimit
from vox_mesh.model.grants.grant import MAX_LINKS, Grant, SignedGrant, Terms, chain_fault, delegation_fault
from vox_mesh.model.grants.needs import scheduling_acts
from vox_mesh.model.grants.templates import TEMPLATES, capabilities_of
from vox_mesh.model.locks.patterns import normalise

KEYS: Final = [SigningKey(bytes([number] * 32)) for number in range(1, MAX_LINKS + 3)]
SCOPE: Final = "default"
IDS: Final = UlidSource(lambda: 1_700_000_000_000, lambda bits: 7)

lock_keys = st.sampled_from(
    ["file:**", "file:a/**", "file:a/b", "file:a/*", "file:**/b", "file:*", "*", "task:*", "task:1"]
).map(normalise)
names = st.sampled_from(["*", "role:qa", "role:*", "role:dev", "ann"])
kinds = st.sampled_from(["*", "notes.*", "notes.web", "notes.web.*", "build"])
arguments = st.lists(st.sampled_from(["*", "-x", "--a=*", "--a=b"]), max_size=2).flatmap(
    lambda fixed: st.sampled_from([tuple(fixed), (*fixed, "**")])
)
LIMITS: Final = ("from_ms", "until_ms", "budget", "delegations")
resources = {"lock": lock_keys, "message": names, "job": kinds}


variables = st.none() | st.sets(st.sampled_from("ABC")).map(frozenset)
programs = st.sampled_from([None, "git", "make"])
commands = st.builds(Act, st.just(EXECUTE), st.none(), programs, st.none() | arguments, variables)


@st.composite
def acts(draw: st.DrawFn) -> Act:
    action = draw(st.sampled_from([*ACTIONS, "*", "job.*", "lock.*", "cron.*"]))
    if action == EXECUTE:
        return draw(commands)
    return Act(action, draw(st.none() | resources.get(action.partition(".")[0], st.none())))


counts = st.none() | st.integers(1, 5)
rates = st.none() | st.builds(RateLimit, st.integers(1, 5), st.sampled_from([1_000, 2_000, 3_000, 60_000]))
capabilities = st.builds(Capability, acts(), st.booleans(), rates, counts)
terms = st.builds(
    Terms,
    st.lists(capabilities, min_size=1, max_size=3).map(tuple),
    st.integers(0, 9),
    st.none() | st.integers(10, 20),
    counts,
    st.integers(0, MAX_LINKS - 1),
)


def changed_in_one(draw: Callable[..., Any], wide: Terms) -> Terms:
    """A part of these terms with one dimension changed, which makes them narrower or wider."""
    child = wide._replace(delegations=max(0, wide.delegations - 1))
    other: Terms = draw(terms)
    if draw(st.booleans()):
        return child._replace(**{name: getattr(other, name) for name in [draw(st.sampled_from(LIMITS))]})
    kept, wanted = draw(st.sampled_from(wide.capabilities)), other.capabilities[0]
    name = draw(st.sampled_from(Capability._fields))
    return child._replace(capabilities=(kept._replace(**{name: getattr(wanted, name)}),))


# --- what a capability means, said in another way -----------------------------------------------


def path_expression(pattern: str) -> str:
    parts = [
        "(?:/[^/]+)*" if each == "**" else "/" + each.replace("*", "[^/]*") for each in pattern.split("/")
    ]
    return "".join(parts)


def word_matches(pattern: str | None, word: str | None) -> bool:
    if pattern is None or word is None:
        return pattern is None
    if pattern.startswith("file:"):
        path = word.removeprefix("file:")
        return path != word and re.fullmatch(path_expression(pattern[5:]), "/" + path) is not None
    return (
        re.fullmatch(
            re.escape(pattern).replace(r"\*", ".*") if pattern[-1] == "*" else re.escape(pattern), word
        )
        is not None
    )


def allows(act: Act, example: Act) -> bool:
    """Whether an example, which has no patterns, is allowed."""
    args = True
    if act.args is not None:
        if example.args is None:
            return False
        fixed = act.args[:-1] if act.args[-1:] == ("**",) else act.args
        rest = len(example.args) >= len(fixed) if fixed != act.args else len(example.args) == len(fixed)
        args = rest and all(word_matches(*pair) for pair in zip(fixed, example.args, strict=False))
    return (
        word_matches(act.action, example.action)
        and word_matches(act.resource, example.resource)
        and act.program in (None, example.program)
        and args
        and (act.env is None or (example.env or frozenset()) <= act.env)
    )


KEYS_TO_LOCK: Final = ("file:a", "file:a/b", "file:b", "file:a/b/c", "task:1", "x")
KINDS: Final = ("notes.web", "notes.web.x", "build")
EXAMPLES: Final = [
    *(Act(action, key) for action in ("lock.acquire", "lock.break") for key in KEYS_TO_LOCK),
    *(Act("message.send", name) for name in ("role:qa", "role:dev", "ann", "bob")),
    *(Act(action, kind) for action in ("job.schedule", "job.take") for kind in KINDS),
    *(
        Act("job.exec", None, program, args, frozenset(env))
        for program in ("git", "rm")
        for args in ((), ("-x",), ("--a=b", "-x"), ("-x", "y", "z"))
        for env in ("", "A", "AB")
    ),
    *(Act(action) for action in ("cron.add", "budget.set", "conflict.resolve")),
]


def permissions(terms: Terms) -> set[tuple[Act, str]]:
    """All examples that terms allow, at once or after an approval."""
    return {
        (example, word)
        for each in terms.capabilities
        for example in EXAMPLES
        if allows(each.act, example)
        for word in (("ask",) if each.asks else ("can", "ask"))
    }


def most_within(terms: Terms, example: Act, window_ms: int) -> float:
    """How often an example may be done within a window, by the capabilities that allow it."""
    found = [each for each in terms.capabilities if allows(each.act, example)]
    limits: list[float] = [
        -(-window_ms // each.rate.window_ms) * each.rate.times if each.rate else float("inf")
        for each in found
    ]
    return max(limits, default=0)


def most_open(terms: Terms, example: Act) -> float:
    """How many unfinished ones there may be, by the capabilities that allow an act."""
    found = [each.open_items for each in terms.capabilities if allows(each.act, example)]
    return max((float("inf") if each is None else each for each in found), default=0)


# --- the tests ----------------------------------------------------------------------------------


@many
@given(st.data())
def test_no_sequence_of_delegations_widens_what_an_agent_may_do(data: st.DataObject) -> None:
    first = data.draw(terms)._replace(delegations=MAX_LINKS - 1)
    chain = [Grant(IDS(), KEYS[0].public, "a0", KEYS[1].public, None, first)]
    for link in range(1, MAX_LINKS + 1):
        parent = chain[-1]
        child = Grant(
            IDS(), KEYS[link].public, f"a{link}", KEYS[link + 1].public, parent.grant_id,
            changed_in_one(data.draw, parent.terms),
        )  # fmt: skip
        if delegation_fault(parent, child) is None:
            chain.append(child)
            assert delegation_fault(parent, child._replace(issuer_key=KEYS[0].public)) is not None
        else:
            break
    assert chain_fault(chain, KEYS[0].public) is None
    last = chain[-1].terms
    assert permissions(last) <= permissions(first)
    for time_ms in range(22):
        assert first.is_valid_at(time_ms) or not last.is_valid_at(time_ms)
    assert last.budget is not None or first.budget is None
    assert (last.budget or 0) <= (first.budget or 5)
    assert last.delegations <= first.delegations - (len(chain) - 1)
    for example in (each for each, _ in permissions(last)):
        allowing = [each for each in first.capabilities if allows(each.act, example)]
        assert most_open(last, example) <= most_open(first, example)
        for window_ms in {each.rate.window_ms for each in allowing if each.rate}:
            assert most_within(last, example, window_ms) <= most_within(first, example, window_ms)


@many
@given(capabilities, capabilities)
def test_an_act_that_covers_another_allows_all_that_it_allows(one: Capability, other: Capability) -> None:
    if one.act.covers(other.act):
        assert all(allows(one.act, example) for example in EXAMPLES if allows(other.act, example))
    for example in EXAMPLES:
        assert one.act.covers(example) == allows(one.act, example)


@many
@given(commands, commands)
def test_a_command_with_one_part_changed_is_covered_only_if_it_allows_no_more(one: Act, other: Act) -> None:
    for part in ("program", "args", "env"):
        changed = one._replace(**{part: getattr(other, part)})
        if one.covers(changed):
            assert all(allows(one, example) for example in EXAMPLES if allows(changed, example))


@many
@given(capabilities)
def test_a_capability_is_read_as_it_is_printed(capability: Capability) -> None:
    assert Capability.parse(str(capability)) == capability


@many
@given(terms)
def test_a_grant_is_read_as_it_is_written_and_signed(terms: Terms) -> None:
    can_first = sorted(terms.capabilities, key=lambda each: each.asks)
    grant = Grant(IDS(), KEYS[0].public, "ann", None, None, terms._replace(capabilities=tuple(can_first)))
    signed = grant.sign(KEYS[0], SCOPE)
    assert SignedGrant.from_payload(signed.payload).verified(SCOPE) == grant
    with pytest.raises(BadValue, match="not signed by its issuer"):
        signed.verified("another scope")
    with pytest.raises(BadValue, match="not signed by its issuer"):
        signed._replace(document=grant._replace(agent="bob").text).verified(SCOPE)


def a_grant() -> Grant:
    own = Terms(capabilities_of(["coder"]), 0, 10, delegations=MAX_LINKS - 1)
    return Grant(IDS(), KEYS[0].public, "ann", KEYS[1].public, None, own)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("can lock.acquire", "ask lock.acquire"),
        ("can lock.acquire on file:src/**", "can lock.acquire on file:src/web/*"),
        ("can job.schedule rate 30/1m", "can job.schedule rate 10/20s"),
        ("can job.schedule rate 30/1m", "can job.schedule rate 30/1h"),
        ("can job.schedule", "can job.schedule rate 30/1h"),
        ("can job.schedule open 5", "can job.schedule open 4"),
        ("can job.exec", "can job.exec program git"),
        ("can job.exec program git args 'log **'", "can job.exec program git args 'log -1 *'"),
        ("can job.exec env A,B", "can job.exec env A"),
    ],
)
def test_each_dimension_can_be_narrowed_and_not_widened(wide: str, narrow: str) -> None:
    one, other = Capability.parse(wide), Capability.parse(narrow)
    assert one.covers(other)
    assert not other.covers(one)
    for limits in ({"until_ms": 9}, {"from_ms": 1}, {"budget": 9}, {"delegations": 0}):
        terms = Terms((one,), 0, 10, 10, 1)
        less = terms._replace(**limits)  # type: ignore[arg-type]
        assert terms.covers(less)
        assert not less.covers(terms)
    assert not Terms((one,), 0, 10, 10).covers(Terms((one,), 0, None, 10))
    assert not Terms((one,), 0, 10, 10).covers(Terms((one,), 0, 10, None))


@pytest.mark.parametrize(
    "change",
    [
        lambda read: read | {"more": 1},
        lambda read: {name: each for name, each in read.items() if name != "budget"},
        lambda read: read | {"v": 2},
        lambda read: read | {"can": [*read["can"], "fly.high"]},
        lambda read: read | {"can": ["lock.acquire  on x"]},
        lambda read: read | {"can": ["lock.acquire on x until tomorrow"]},
        lambda read: read | {"can": [], "ask": []},
        lambda read: read | {"from": 11},
        lambda read: read | {"from": 0.5},
        lambda read: read | {"delegations": MAX_LINKS},
        lambda read: read | {"id": "1"},
        lambda read: read | {"by": "me"},
        lambda read: read | {"agent": "*"},
        lambda read: read | {"agent": None},
        lambda read: read | {"parent": 5},
        lambda read: read | {"budget": True},
    ],
)
def test_a_document_with_anything_unknown_is_refused(
    change: Callable[[dict[str, object]], dict[str, object]],
) -> None:
    text = a_grant().text
    assert Grant.read(text).text == text
    with pytest.raises(BadValue):
        Grant.read(orjson.dumps(change(orjson.loads(text)), option=orjson.OPT_SORT_KEYS).decode())


def test_a_chain_has_at_most_eight_links_and_begins_with_the_owner() -> None:
    chain = [a_grant()]
    for link in range(1, MAX_LINKS):
        before = chain[-1]
        own = before.terms._replace(delegations=before.terms.delegations - 1)
        chain.append(Grant(IDS(), KEYS[link].public, "ann", KEYS[link + 1].public, before.grant_id, own))
    assert chain_fault(chain, KEYS[0].public) is None
    following = chain[-1]._replace(
        parent_id=chain[-1].grant_id, issuer_key=KEYS[MAX_LINKS].public, grant_id=IDS()
    )
    assert delegation_fault(chain[-1], following) == "its parent can't be delegated further"
    assert chain_fault([*chain, following], KEYS[0].public) == "it must have 1 to 8 links, got 9"
    assert chain_fault(chain, KEYS[1].public) == "it does not begin with a grant of the owner"
    assert chain_fault(chain[1:], KEYS[1].public) == "it does not begin with a grant of the owner"
    assert chain_fault([chain[0], chain[2]], KEYS[0].public) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must name an action"),
        ("fly", "action 'fly' not found"),
        ("fly.*", "action 'fly.\\*' not found"),
        ("job", "action 'job' not found"),
        ("* on file:x", "\\* has no on"),
        ("lock.acquire to x", "lock.acquire has no to"),
        ("lock.acquire on", "each word once, with a value"),
        ("lock.acquire on a on b", "each word once, with a value"),
        ("lock.acquire on 'a", "No closing quotation"),
        ("lock.acquire on file:../x", "must not contain"),
        ("job.schedule kind Notes", "a kind must be"),
        ("job.schedule rate 30", "a number per duration"),
        ("job.schedule rate 30/soon", "not a duration"),
        ("job.schedule rate 0/1m", "from 1 to"),
        ("job.schedule open many", "from 1 to"),
        ("job.exec args '** x'", "at the end only"),
        ("job.take program git", "job.take has no program"),
    ],
)
def test_what_is_no_capability_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        Capability.parse(text)


def test_templates_are_ordered_from_reader_to_owner() -> None:
    order = ["reader", "worker", "operator", "owner"]
    for narrow, wide in pairwise(order):
        assert Terms(capabilities_of([wide]), 0).covers(Terms(capabilities_of([narrow]), 0)), narrow
    found = Terms(capabilities_of(["coder"]), 0)
    for act in (Act("job.exec", None, "rm", (), frozenset()), Act("lock.break", "x"), Act("budget.set")):
        capability = found.find(act)
        assert capability is not None
        assert capability.asks
    assert [str(each) for each in capabilities_of(["reader", "lock.acquire on file:src/"])] == [
        "can mesh.read",
        "can lock.acquire on 'file:src/**'",
    ]
    assert set(TEMPLATES) == {*order, "coder"}


# --- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "parts", "is_allowed"),
    [
        (["command", 0], [{"text": "rm"}], False),
        (["command", 0], [{"job": "any"}], False),
        (["command"], [{"text": "rm"}], False),
        (["args", 0], [{"text": "push"}], False),
        (["args", -2], [{"text": "push"}], False),
        (["args"], [{"text": "push"}], False),
        (["args", 1], [{"job": "any"}], False),
        (["args", 1], [{"text": "--"}, {"job": "any"}], True),
        (["env", "CI"], [{"job": "any"}], True),
    ],
)
def test_a_command_is_allowed_as_its_bindings_make_it(path: list[Any], parts: Any, is_allowed: bool) -> None:
    own = Capability.parse("job.exec program git args 'log --*' env CI").act
    core = {"command": ["git"], "args": ["log", "--all"], "env": {"CI": "1"}}
    assert [own.covers(act) for act in scheduling_acts([("exec", core)])] == [True]
    bound = {**core, "inputs": [{"bind": path, "parts": parts}]}
    assert [own.covers(act) for act in scheduling_acts([("exec", bound)])] == [is_allowed]
