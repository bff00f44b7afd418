"""Manifests: the same job has the same id however it is written, and another job has another one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few, many
from vox_mesh.errors import BadManifest
from vox_mesh.model.base.canonical import canonical, content_id
from vox_mesh.model.jobs.manifest import (
    After,
    Manifest,
    When,
    external_references,
    handler_manifest,
    parse_manifests,
    sort_by_dependency,
)

FIRST: Final = "01J00000000000000000000001"
SECOND: Final = "01J00000000000000000000002"
THIRD: Final = "01J00000000000000000000003"
JOB: Final = "ab" * 32
OTHER: Final = "cd" * 32

WHOLE: Final = f"""\
command: [/usr/bin/env, bash, -lc]
args: [echo, hello]
timeout: PT1M30S
env: {{GREETING: hello, EMPTY: ""}}
cwd: /srv
inputs:
  - {{kind: blobptr, size: 123}}
policy_root: sha256:{"0" * 64}
after: [{JOB}, {{job: {OTHER}, when: end}}, {{op: {FIRST}}}]
nonce: again
ulid: {FIRST}
priority: 2
run_at: 2030-01-31T10:00:00.5+02:00
max_attempts: 5
backoff: 500ms
lease: 2m
"""

names = st.text("abcxyz019_-\u00e9 ", min_size=1, max_size=6)
numbers = st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
words = st.sampled_from(
    ["yes", "null", "1:30", "2030-01-31", "<<", "*a", "# no", "a: b", "NaN", "\u2028", "~"]
)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | words
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=10,
)


def only(text: str) -> Manifest:
    """The one manifest of a text."""
    (manifest,) = parse_manifests(text)
    return manifest


def job(ulid: str | None = None, *after: Any, **fields: Any) -> Manifest:
    """A small job for a handler."""
    return handler_manifest("demo.task", {"ulid": ulid}, ulid=ulid, after=list(after), **fields)


# --- ids ------------------------------------------------------------------------------------------


def test_the_pinned_vectors_hold() -> None:
    example = 'command: ["/usr/bin/env", "bash", "-lc"]\nargs: ["echo", "hello"]\ntimeout: 30\n'
    assert only(example + 'env: { GREETING: "hello" }').content_id == (
        "298aaf4ca1e68cb951a3fae38e69dba73ce6a24d138f773601ff7d264e0d5fdc"
    )
    assert only("command: [/bin/true]\ntimeout: 1").content_id == (
        "bbbde3ba754c9ef233ab424de9ff974f0bde4c8f60676d55fd923cf40d186358"
    )


def test_yaml_and_json_of_the_same_manifest_are_the_same_job() -> None:
    written = yaml.safe_load(
        WHOLE.replace("run_at: 2030-01-31T10:00:00.5+02:00", "run_at: '2030-01-31T08:00:00.5Z'")
    )
    for indent in (None, 2, "\t"):
        assert only(json.dumps(written, indent=indent)) == only(WHOLE)
        assert only(json.dumps(written, indent=indent)).content_id == only(WHOLE).content_id


def test_the_core_has_all_that_makes_the_job_and_nothing_else() -> None:
    assert only(WHOLE).core() == {
        "command": ["/usr/bin/env", "bash", "-lc"],
        "args": ["echo", "hello"],
        "timeout": 90,
        "env": {"GREETING": "hello", "EMPTY": ""},
        "cwd": "/srv",
        "inputs": [{"kind": "blobptr", "size": 123}],
        "policy_root": "sha256:" + "0" * 64,
        "after": [JOB, {"job": OTHER, "when": "end"}, {"op": FIRST}],
        "nonce": "again",
    }
    assert only("kind: demo.task").core() == {"kind": "demo.task"}
    assert only("kind: demo.task\npayload: null").core() == {"kind": "demo.task", "payload": None}
    assert only("{command: [a], timeout: 0}").core() == {"command": ["a"], "args": [], "timeout": 0}


@few
@given(st.permutations(WHOLE.replace("inputs:\n  - ", "inputs: [").replace("123}", "123}]").splitlines()))
def test_the_order_of_fields_does_not_change_the_id(lines: list[str]) -> None:
    assert only("\n".join(lines)).content_id == only(WHOLE).content_id


@pytest.mark.parametrize(
    "timeout", ["90", "90s", "'90'", "PT1M30S", "PT90S", "PT0H1M30.000S", "90000ms", "' 90s'"]
)
def test_the_spelling_of_the_timeout_does_not_change_the_id(timeout: str) -> None:
    assert only(WHOLE.replace("PT1M30S", timeout)).content_id == only(WHOLE).content_id


@pytest.mark.parametrize(
    "options",
    [
        {"ulid": SECOND},
        {"priority": 3},
        {"run_at": "2031-01-01T00:00:00Z"},
        {"max_attempts": 1},
        {"backoff": "1d"},
        {"lease": 10},
        {"after": []},
        {"priority": None, "nonce": None},
    ],
    ids=str,
)
def test_the_ulid_and_scheduling_options_do_not_change_the_id(options: dict[str, Any]) -> None:
    plain = handler_manifest("demo.task", {"n": 1})
    assert handler_manifest("demo.task", {"n": 1}, **options).content_id == plain.content_id


def test_hex_is_lowercase_in_the_core_of_a_new_manifest_and_as_it_was_in_a_stored_one() -> None:
    pointers: list[dict[str, Any]] = [
        {"kind": "blobptr", "algo": "blake3", "hash": JOB, "size": 1},
        {"hash": f"sha256:{JOB}"},
        {"algo": "blake3", "hash": "not hex, AB"},
    ]
    fields: dict[str, Any] = {"policy_root": f"sha256:{JOB}", "after": [JOB]}
    plain = handler_manifest("demo.task", JOB, inputs=pointers, **fields)
    capitals = [{**each, "hash": each["hash"].replace(JOB, JOB.upper())} for each in pointers]
    written = handler_manifest(
        "demo.task",
        JOB,
        inputs=capitals,
        policy_root=f"sha256:{JOB.upper()}",
        after=[JOB.upper()],
    )
    assert written.core() == plain.core()
    opaque = [{"hash": JOB.upper()}, {"name": JOB.upper(), "algo": "blake3"}]
    kept = handler_manifest("demo.task", JOB.upper(), inputs=opaque).core()
    assert (kept["payload"], kept["inputs"]) == (JOB.upper(), opaque)
    stored = {**plain.core(), "inputs": capitals}
    assert Manifest.of_core(stored).content_id == content_id(stored) != plain.content_id


def test_the_kind_exec_may_be_written_and_args_may_be_left_out() -> None:
    plain = Manifest.of(command=["/bin/true"], timeout=1)
    assert Manifest.of(command=["/bin/true"], timeout=1, kind="exec", args=[]).content_id == plain.content_id
    assert plain.job_kind == "exec"
    assert handler_manifest("demo.task", None).job_kind == "demo.task"


OTHERS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "command": st.lists(texts.filter(bool), min_size=1, max_size=3),
    "args": st.lists(texts, min_size=1, max_size=3),
    "timeout": st.integers(2, 2_592_000),
    "env": st.dictionaries(names, texts, max_size=3),
    "cwd": texts.map("/".__add__),
    "inputs": st.lists(st.dictionaries(names, values, max_size=3), max_size=3),
    "policy_root": st.binary(min_size=32, max_size=32).map(lambda data: "sha256:" + data.hex()),
    "after": st.lists(
        st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=3, unique=True
    ),
    "nonce": texts.filter(bool),
    "retry_of": st.binary(min_size=32, max_size=32).map(bytes.hex),
}


@few
@given(st.data())
@pytest.mark.parametrize("field", OTHERS)
def test_every_field_of_the_core_changes_the_id(field: str, data: st.DataObject) -> None:
    fields: dict[str, Any] = {"command": ["/bin/true"], "timeout": 1}
    first, second = (data.draw(OTHERS[field]) for _ in range(2))
    ids = {Manifest.of(**fields).content_id}
    ids |= {Manifest.of(**{**fields, field: value}).content_id for value in (first, second)}
    different = {canonical(value) for value in (first, second)} - {canonical(fields.get(field))}
    assert len(ids) == 1 + len(different)


@many
@given(values, values)
def test_a_payload_changes_the_id_by_what_it_says(first: Any, second: Any) -> None:
    ids = [handler_manifest("demo.task", payload).content_id for payload in (first, second)]
    assert (ids[0] == ids[1]) == (canonical(first) == canonical(second))
    assert ids[0] == content_id({"kind": "demo.task", "payload": first})


def test_the_end_that_is_waited_for_changes_the_id() -> None:
    waits = [JOB, {"job": JOB, "when": "end"}, {"op": FIRST}]
    assert len({job(None, each).content_id for each in waits}) == 3
    assert job(None, {"job": JOB, "when": "success"}).content_id == job(None, JOB).content_id


# --- there and back -------------------------------------------------------------------------------


@few
@given(values, st.dictionaries(names, values, max_size=3))
def test_a_stored_core_gives_back_the_same_job(payload: Any, data: dict[str, Any]) -> None:
    for manifest in (
        handler_manifest(
            "demo.task", payload, after=[JOB, {"op": FIRST}], nonce="n", retry_of=JOB, timeout=3
        ),
        Manifest.of(command=["a"], timeout=0, inputs=[data], kind="exec", env={}, cwd="/"),
    ):
        stored = orjson.loads(canonical(manifest.core()))
        assert Manifest.of_core(stored).content_id == manifest.content_id
        assert Manifest.of_core(manifest.core()).core() == manifest.core()


@pytest.mark.parametrize(
    ("core", "part"),
    [
        ({"kind": "demo.task", "priority": 1}, "no core"),
        ({"command": ["a"], "timeout": 1}, "no core"),
        ({"command": ["a"], "args": [], "timeout": "90s"}, "no core"),
        ({"command": ["a"], "args": [], "timeout": 1, "kind": "exec"}, "no core"),
        ({"kind": "demo.task", "after": []}, "no core"),
        ({"kind": "demo.task", "payload": b"a"}, "no JSON"),
        ({"command": [], "args": [], "timeout": 1}, "must not be empty"),
        ({}, "there must be a command"),
    ],
)
def test_what_is_no_core_is_refused(core: dict[str, Any], part: str) -> None:
    with pytest.raises(BadManifest, match=part):
        Manifest.of_core(core)


def test_a_payload_changed_later_does_not_change_the_job() -> None:
    payload = {"n": [1]}
    first = handler_manifest("demo.task", payload)
    payload["n"].append(2)
    assert first.content_id == handler_manifest("demo.task", {"n": [1]}).content_id
    assert first.payload == {"n": [1]}


def test_a_manifest_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(job(), "kind", "other")  # noqa: B010


def test_options_are_reported_in_milliseconds() -> None:
    manifest = only(WHOLE)
    assert manifest.timeout_ms == 90_000
    assert manifest.run_at_ms == 1_896_076_800_500
    assert (manifest.backoff_ms, manifest.lease_ms) == (500, 120_000)
    assert (manifest.priority, manifest.max_attempts) == (2, 5)
    plain = job()
    assert (plain.timeout_ms, plain.run_at_ms, plain.backoff_ms, plain.lease_ms) == (None,) * 4
    assert only("{command: [a], timeout: 0}").timeout_ms == 0


def test_code_may_give_times_as_times() -> None:
    manifest = job(run_at=datetime(2030, 1, 1, tzinfo=UTC), lease=timedelta(seconds=5), backoff=timedelta())
    assert manifest == job(run_at="2029-12-31t23:00:00-01:00", lease="5s", backoff=0)
    assert job(lease=1.5, backoff=0.25, timeout=90.0) == job(
        lease="1s500ms", backoff="250ms", timeout="1m30s"
    )


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "run_at: a datetime is no time with an offset"),  # noqa: DTZ001
        ({"payload": {1: 2}}, "payload: the value has no canonical JSON"),
        ({"payload": "\ud800"}, "payload: the value has no canonical JSON"),
        ({"payload": float("nan")}, "payload: the value has no canonical JSON"),
        ({"payload": {1, 2}}, "payload: the value has no canonical JSON"),
        ({"nonce": "\ud800"}, "nonce: has half a surrogate pair"),
        ({"retry_of": "ab"}, "retry_of: must not be 'ab'; allowed: a job id"),
        ({"after": [After("junk")]}, "names no job"),
        ({"after": {JOB}}, "after: must be an array, not a set"),
        ({"timeout": 10**5_000}, "timeout"),
        ({"lease": timedelta(days=2)}, "lease: a timedelta is too long"),
        ({"colour": "red"}, "colour: is no field of a manifest"),
    ],
)
def test_code_is_held_to_the_same_rules(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(BadManifest) as refused:
        Manifest.of(**{"kind": "demo.task", **fields})
    assert len(refused.value.faults) == 1
    assert part in refused.value.faults[0]


# --- batches --------------------------------------------------------------------------------------


def test_predecessors_come_first_and_are_named_by_their_ids() -> None:
    third = job(THIRD, SECOND, {"job": FIRST, "when": "end"})
    second = job(SECOND, FIRST, JOB, {"op": FIRST})
    first = job(FIRST)
    result = [*sort_by_dependency([third, second, first])]
    assert [each.ulid for each in result] == [FIRST, SECOND, THIRD]
    assert result[1].after == (After(first.content_id), After(JOB), After(None, FIRST))
    assert result[2].after == (After(result[1].content_id), After(first.content_id, when=When.END))
    assert [*sort_by_dependency([first, second, third])] == result


def test_a_batch_without_names_stays_as_it_stands() -> None:
    batch = [job(nonce=str(number)) for number in range(5)]
    assert [*sort_by_dependency(batch)] == batch


def test_a_long_chain_is_put_in_order() -> None:
    ulids = [f"01J{number:023}" for number in range(1_200)]
    chain = [job(ulid, *ulids[place - 1 : place]) for place, ulid in enumerate(ulids)]
    result = [*sort_by_dependency(chain[::-1])]
    assert [each.ulid for each in result] == ulids
    assert all(not each.unresolved for each in result)


def test_jobs_outside_the_batch_are_left_and_nothing_is_hashed_before_they_are_known() -> None:
    first, second = [*sort_by_dependency([job(SECOND, FIRST), job(FIRST, "abcdef", THIRD)])]
    assert (first.unresolved, second.unresolved) == (["abcdef", THIRD], [FIRST])
    for each in (first, second):
        with pytest.raises(BadManifest, match="is not resolved"):
            _ = each.content_id
    assert external_references([second, first]) == [THIRD, "abcdef"]
    known = first.with_after({"abcdef": JOB, THIRD: OTHER})
    assert known.after == (After(JOB), After(OTHER))
    assert known.content_id == job(FIRST, JOB, OTHER).content_id
    assert [*sort_by_dependency([second, known])][1].after == (After(known.content_id),)


def test_resolving_makes_a_copy_with_an_id_of_its_own() -> None:
    plain = job(None, JOB)
    assert plain.with_after({JOB: OTHER}) is plain, "an id stays what it is"
    named = job(None, FIRST, priority=3)
    ids = {named.with_after({FIRST: job_id}).content_id for job_id in (JOB, OTHER)}
    assert len(ids) == 2
    assert named.unresolved == [FIRST]
    assert named.with_after({FIRST: JOB}).priority == 3
    assert plain.model_copy(update={"nonce": "another"}).content_id != plain.content_id


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        ([job(FIRST, FIRST)], f"{FIRST} -> {FIRST}"),
        ([job(FIRST, SECOND), job(SECOND, FIRST)], f"{FIRST} -> {SECOND} -> {FIRST}"),
        (
            [job(None, FIRST), job(FIRST, SECOND), job(SECOND, THIRD), job(THIRD, SECOND)],
            f": {SECOND} -> {THIRD} -> {SECOND}",
        ),
        ([job(FIRST), job(SECOND), job(FIRST, nonce="2")], f"ulid: {FIRST} is used by more than one"),
        ([job(FIRST), job(None, FIRST, job(FIRST).content_id)], "is named twice"),
    ],
    ids=["itself", "two", "further on", "ulid twice", "one job by two names"],
)
def test_a_batch_that_cannot_be_ordered_is_refused(batch: list[Manifest], part: str) -> None:
    with pytest.raises(BadManifest) as refused:
        [*sort_by_dependency(batch)]
    assert part in refused.value.faults[0]
