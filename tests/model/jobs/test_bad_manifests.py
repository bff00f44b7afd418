"""Manifests that can't be used: each is refused with its field, its line, and what is allowed there."""

from __future__ import annotations

import json
from typing import Final

import pytest

from vox_mesh.errors import BadManifest
from vox_mesh.model.documents.validation import MAX_FAULTS
from vox_mesh.model.jobs.manifest import parse_manifests

ULID: Final = "01J00000000000000000000001"
JOB: Final = "ab" * 32


def command(*lines: str) -> str:
    """A command's manifest of which the first of `lines` is the third line."""
    return "\n".join(("command: [/bin/true]", "timeout: 1", *lines))


def handler(*lines: str) -> str:
    """A handler's manifest of which the first of `lines` is the second line."""
    return "\n".join(("kind: demo.task", *lines))


def timed(timeout: str) -> str:
    """A command with this timeout, on the second line."""
    return f"command: [/bin/true]\ntimeout: {timeout}"


# What is written, then the line, the field (empty: the whole) and a part of what is said of it.
CASES: Final[dict[str, tuple[str | bytes, int, str, str]]] = {
    # the text
    "nothing": ("", 1, "", "there is no manifest in it"),
    "only a comment": ("# nothing\n", 1, "", "there is no manifest in it"),
    "an empty document": ("---\n", 1, "", "a manifest is a map, not null"),
    "text": ("run this", 1, "", "a manifest is a map, not text"),
    "a number": ("42", 1, "", "a manifest is a map, not a number"),
    "an array": ("- kind: demo.task", 1, "", "separate several manifests by lines of ---"),
    "not closed": ("kind: demo.task\npayload: [1", 2, "", "this is no YAML and no JSON"),
    "tab for indent": ("kind: demo.task\npayload:\n\ta: 1", 3, "", "this is no YAML and no JSON"),
    "two documents on one": ('{"kind": "a"}\n{"kind": "b"}', 2, "", "this is no YAML and no JSON"),
    "quote not closed": (handler("nonce: 'a"), 2, "", "this is no YAML and no JSON"),
    "escape of no character": (handler('nonce: "\\ud800"'), 2, "", "this is no YAML and no JSON"),
    "not UTF-8": (b"kind: demo.task\nnonce: \xff", 2, "", "this is not UTF-8"),
    "control character": (handler("nonce: a\x07b"), 2, "", "the character 0x7 is not allowed"),
    "foreign end of line": (handler("nonce: a\u2028b"), 2, "", 'write "\\u2028"'),
    "surrogate": (handler("nonce: \ud800"), 2, "", "the character 0xd800 is not allowed"),
    "too large": (handler("nonce: " + "x" * 2**20), 1, "", "at most 1048576 are read"),
    "too deep": (handler("payload: " + "[" * 200 + "]" * 200), 2, "", "nested more than 128 deep"),
    "too deep in names": (handler("payload: " + "{" * 2_000), 2, "", "nested more than 128 deep"),
    "tag": (handler("nonce: !!str 1"), 2, "nonce", "tag:yaml.org,2002:str is a tag"),
    "local tag": (handler("payload: !new {a: 1}"), 2, "payload", "!new is a tag"),
    "anchor": (handler("nonce: &a b"), 2, "nonce", "&a is an anchor"),
    "alias": (handler("nonce: b", "payload: [1, *a]"), 3, "payload[1]", "*a is an alias"),
    "merge": (handler("<<: {nonce: a}"), 2, "<<", "would merge maps"),
    "written twice": (handler("nonce: a", "nonce: a"), 3, "nonce", "is written twice, first on line 2"),
    "twice in JSON": ('{"kind": "a",\n "kind": "a"}', 2, "kind", "is written twice, first on line 1"),
    "twice further in": (handler("payload:", "  a: 1", "  a: 2"), 4, "payload.a", "is written twice"),
    "name that is a number": (handler("payload:", "  1: a"), 3, "payload", "the name 1 is no text"),
    "name that is null": (handler("payload: {~: a}"), 2, "payload", "the name ~ is no text"),
    "name that is a map": (handler("payload: {{a: 1}: 2}"), 2, "payload.?", "a name must be text"),
    "not a number": (handler("payload: [.nan]"), 2, "payload[0]", ".nan is no number of JSON"),
    "infinite": (handler("payload: -.inf"), 2, "payload", "-.inf is no number of JSON"),
    "NaN": ('{"kind": "a", "payload": NaN}', 1, "payload", "NaN is no number of JSON"),
    "not finite": (handler("payload: 1e400"), 2, "payload", "the number is too large to be exact"),
    "not exact": (handler("payload: 9007199254740992"), 2, "payload", "the number is too large to be exact"),
    "endless": (handler("payload: " + "9" * 5_000), 2, "payload", "the number is too large to be exact"),
    # what fits together
    "neither": ("nonce: a", 1, "", "there must be a command, or a kind"),
    "unknown field": (handler("retries: 3"), 2, "retries", "is no field of a manifest; allowed: after, args"),
    "field in capitals": (handler("Nonce: a"), 2, "Nonce", "is no field of a manifest"),
    "no space": (handler("payload: {a: 1}", "nonce: a", "a:b:"), 4, '"a:b"', "is no field of a manifest"),
    "no timeout": ("# run\ncommand: [/bin/true]", 2, "timeout", "is missing: a command needs one"),
    "command and kind": (command("kind: demo.task"), 3, "kind", "a job with a command is of kind exec"),
    "exec without command": ("kind: exec", 1, "kind", "exec is the kind of jobs with a command"),
    "payload for a command": (command("payload: 1"), 3, "payload", "is for handlers"),
    "args without command": (handler("args: [a]"), 2, "args", "is of use only with a command"),
    "env without command": (handler("env: {A: b}"), 2, "env", "is of use only with a command"),
    "cwd without command": (handler("cwd: /srv"), 2, "cwd", "is of use only with a command"),
    "retry of": (handler(f"retry_of: {JOB}"), 2, "retry_of", "is not for manifests"),
    "empty field": (handler("nonce:"), 2, "nonce", "must not be empty or null; leave it out"),
    "null": (handler("priority: null"), 2, "priority", "must not be empty or null; leave it out"),
    # commands
    "command as text": ("command: /bin/true\ntimeout: 1", 1, "command", "must be an array, not text"),
    "command as map": ("command: {a: b}\ntimeout: 1", 1, "command", "must be an array, not a map"),
    "empty command": (
        "command: []\ntimeout: 1",
        1,
        "command",
        "must not be empty; allowed: a non-empty array",
    ),
    "no program": ("command: ['', a]\ntimeout: 1", 1, "command[0]", "the program has no name"),
    "number in command": (
        "timeout: 1\ncommand:\n- a\n- 5",
        4,
        "command[1]",
        "must be text, in quotes, not a number",
    ),
    "NUL in command": ('command: ["a\\0"]\ntimeout: 1', 1, "command[0]", "has a NUL character"),
    "args as text": (command("args: -v"), 3, "args", "must be an array, not text"),
    "number in args": (command("args: [a, 10]"), 3, "args[1]", "must be text, in quotes, not a number"),
    "truth in args": (command("args:", "  - true"), 4, "args[0]", "must be text, in quotes, not true"),
    "null in args": (command("args: [~]"), 3, "args[0]", "must be text, in quotes, not null"),
    "array in args": (command("args: [[a]]"), 3, "args[0]", "must be text, not an array"),
    "NUL in args": (command('args: ["\\u0000"]'), 3, "args[0]", "has a NUL character"),
    "negative timeout": (timed("-1"), 2, "timeout", "-1 is not a duration (write 90, 90s, 5m"),
    "fraction as timeout": (timed("1.5"), 2, "timeout", "1.5 is not whole seconds; allowed: whole seconds"),
    "parts of a second": (timed("1500ms"), 2, "timeout", "'1500ms' is not whole seconds"),
    "parts in ISO 8601": (timed("PT0.5S"), 2, "timeout", "'PT0.5S' is not whole seconds"),
    "word as timeout": (timed("soon"), 2, "timeout", "'soon' is not a duration"),
    "months": (timed("P1M"), 2, "timeout", "'P1M' is not a duration"),
    "clock time": (timed("1:30"), 2, "timeout", "'1:30' is not a duration"),
    "truth as timeout": (timed("true"), 2, "timeout", "True is not a duration"),
    "array as timeout": (timed("[1]"), 2, "timeout", "[1] is not a duration"),
    "timeout too long": (timed("2592001"), 2, "timeout", "2592001 is too long"),
    "endless timeout": (timed("'" + "9" * 5_000 + "s'"), 2, "timeout", "is not a duration"),
    "env as array": (command("env: [A=b]"), 3, "env", "must be a map, not an array"),
    "number in env": (command("env:", "  PORT: 80"), 4, "env.PORT", "must be text, in quotes, not a number"),
    "name with =": (command("env: {A=B: c}"), 3, "env.A=B", "'A=B' is no name of a variable"),
    "empty name": (command("env:", '  "": c'), 4, 'env.""', "'' is no name of a variable"),
    "NUL in a name": (command('env: {"A\\0": c}'), 3, 'env."A\\u0000"', "has a NUL character"),
    "NUL in a variable": (command('env: {A: "c\\0"}'), 3, "env.A", "has a NUL character"),
    "path upwards": (command("cwd: a/../../b"), 3, "cwd", "'a/../../b' is neither an absolute path nor one"),
    "no path": (command('cwd: ""'), 3, "cwd", "'' is neither an absolute path nor one"),
    "path from home": (command("cwd: ~/a"), 3, "cwd", "'~/a' is neither an absolute path nor one"),
    "NUL in the path": (command('cwd: "/a\\0"'), 3, "cwd", "has a NUL character"),
    "number as path": (command("cwd: 1"), 3, "cwd", "must be text, in quotes, not a number"),
    # what both have
    "inputs as map": (handler("inputs: {a: 1}"), 2, "inputs", "must be an array, not a map"),
    "text in inputs": (handler("inputs:", "- a: 1", "- b"), 4, "inputs[1]", "must be a map, not text"),
    "NUL in inputs": (handler("inputs:", '- a: ["\\0"]'), 3, "inputs[0].a[0]", "has a NUL character"),
    "too many inputs": (handler(f"inputs: [{{a: {'x' * 262_144}}}]"), 2, "inputs", "at most 262144 fit"),
    "root without prefix": (handler("policy_root: " + "a" * 64), 2, "policy_root", "allowed: sha256: and 64"),
    "root with a prefix in capitals": (
        handler("policy_root: SHA256:" + "a" * 64),
        2,
        "policy_root",
        "must not be 'SHA256:aaa",
    ),
    "short root": (handler("policy_root: sha256:ab"), 2, "policy_root", "must not be 'sha256:ab'"),
    "root and more": (
        handler(f'policy_root: "sha256:{JOB}\\n"'),
        2,
        "policy_root",
        "must not be 'sha256:abab",
    ),
    "no ULID": (handler("ulid: first"), 2, "ulid", "'first' is not a ULID; allowed: 26 of"),
    "small ULID": (handler("ulid: " + ULID.lower()), 2, "ulid", "is not a ULID"),
    "ULID beyond time": (handler("ulid: 8" + ULID[1:]), 2, "ulid", "is not a ULID"),
    "kind in capitals": ("kind: Demo", 1, "kind", "must not be 'Demo'; allowed: up to 128 of a-z"),
    "kind with a star": ("kind: demo.*", 1, "kind", "must not be 'demo.*'"),
    "kind with an end": ("kind: demo.", 1, "kind", "must not be 'demo.'"),
    "kind with a gap": ("kind: demo..task", 1, "kind", "must not be 'demo..task'"),
    "kind with a digit first": ("kind: 1demo", 1, "kind", "must not be '1demo'"),
    "kind and a line": ('kind: "demo\\n"', 1, "kind", "must not be 'demo\\n'"),
    "empty kind": ("kind: ''", 1, "kind", "must not be ''"),
    "long kind": ("kind: " + "a" * 129, 1, "kind", "must not be 'aaaa"),
    "number as kind": ("kind: 7", 1, "kind", "must be text, in quotes, not a number"),
    "payload without kind": ("payload: 1\ncommand: [a]\ntimeout: 1", 1, "payload", "is for handlers"),
    "payload too large": (handler("payload: " + "x" * 262_143), 2, "payload", "takes 262145 bytes"),
    "payload too deep": (
        handler("payload: " + "[" * 65 + "]" * 65),
        2,
        "payload",
        "must be nested at most 64 levels deep",
    ),
    "NUL in payload": (handler("payload:", "  a:", '    b: "\\0"'), 4, "payload.a.b", "has a NUL character"),
    "NUL in a payload's name": (handler("payload:", '  "a\\0": 1'), 2, "payload", "has a NUL character"),
    # waiting
    "after as text": (handler(f"after: {JOB}"), 2, "after", "must be an array, not text"),
    "after a number": (
        handler("after:", f"- {JOB}", "- 5"),
        4,
        "after[1]",
        "must be text or a map, not a number",
    ),
    "after a digits' number": (
        handler("after: [123456]"),
        2,
        "after[0]",
        "must be text or a map, not a number",
    ),
    "short prefix": (handler("after: [abcde]"), 2, "after[0]", "'abcde' names no job; allowed: job ids or 6"),
    "long prefix in capitals": (handler(f"after: [{JOB.upper()}A]"), 2, "after[0]", "names no job"),
    "too long an id": (handler(f"after: [{JOB}a]"), 2, "after[0]", "names no job"),
    "same job twice": (
        handler("after:", f"- {JOB}", f"- {{job: {JOB}, when: end}}"),
        4,
        "after[1]",
        "is named twice",
    ),
    "same op twice": (handler(f"after: [{{op: {ULID}}}, {{op: {ULID}}}]"), 2, "after[1]", "is named twice"),
    "too many": (
        handler(f"after: {json.dumps([f'{n:064x}' for n in range(10_001)])}"),
        2,
        "after",
        "has 10001; at most",
    ),
    "unknown in after": (
        handler("after:", f"- job: {JOB}", "  then: end"),
        4,
        "after[0].then",
        "is not known here",
    ),
    "empty map": (handler("after: [{}]"), 2, "after[0]", "must have either job or op"),
    "job and op": (
        handler(f"after: [{{job: {JOB}, op: {ULID}}}]"),
        2,
        "after[0]",
        "must have either job or op",
    ),
    "no such end": (
        handler("after:", f"- job: {JOB}", "  when: failure"),
        4,
        "after[0].when",
        "is neither success",
    ),
    "when is null": (
        handler(f"after: [{{job: {JOB}, when: ~}}]"),
        2,
        "after[0].when",
        "null is neither success",
    ),
    "when for an op": (
        handler(f"after: [{{op: {ULID}, when: end}}]"),
        2,
        "after[0].when",
        "when is for jobs",
    ),
    "op by hash": (handler(f"after: [{{op: {JOB}}}]"), 2, "after[0].op", "is not the ULID of an op"),
    "job is null": (handler("after:", "- job:"), 3, "after[0].job", "null names no job"),
    # options
    "priority too high": (
        handler("priority: 4"),
        2,
        "priority",
        "must not be 4; allowed: an integer from 0 to 3",
    ),
    "negative priority": (handler("priority: -1"), 2, "priority", "must not be -1"),
    "priority as text": (handler("priority: '1'"), 2, "priority", "must be an integer, not text"),
    "priority as float": (handler("priority: 1.0"), 2, "priority", "must be an integer, not a number"),
    "priority as truth": (handler("priority: true"), 2, "priority", "must be an integer, not true"),
    "no attempts": (
        handler("max_attempts: 0"),
        2,
        "max_attempts",
        "must not be 0; allowed: an integer from 1",
    ),
    "many attempts": (handler("max_attempts: 101"), 2, "max_attempts", "must not be 101"),
    "time without offset": (handler("run_at: 2030-01-31T08:00:00"), 2, "run_at", "is no time with an offset"),
    "date alone": (handler("run_at: 2030-01-31"), 2, "run_at", "'2030-01-31' is no time with an offset"),
    "no such day": (handler("run_at: 2030-02-31T08:00:00Z"), 2, "run_at", "is no time: day is out of range"),
    "no such offset": (handler("run_at: 2030-01-31T08:00:00+25:00"), 2, "run_at", "is no time: offset"),
    "before all time": (handler("run_at: 1969-12-31T23:59:59Z"), 2, "run_at", "is too far away"),
    "time as number": (handler("run_at: 1900000000"), 2, "run_at", "1900000000 is no time with an offset"),
    "time as map": (handler("run_at: {a: 1}"), 2, "run_at", "a map is no time with an offset"),
    "long backoff": (
        handler("backoff: 25h"),
        2,
        "backoff",
        "'25h' is too long; allowed: a duration from 0 to 1d",
    ),
    "negative backoff": (handler("backoff: -5s"), 2, "backoff", "'-5s' is not a duration"),
    "short lease": (handler("lease: 999ms"), 2, "lease", "'999ms' is too short; allowed: a duration from 1s"),
    "no lease": (handler("lease: 0"), 2, "lease", "0 is too short"),
    "long lease": (handler("lease: P2D"), 2, "lease", "'P2D' is too long"),
    "empty nonce": (handler('nonce: ""'), 2, "nonce", "must not be ''; allowed: a text of 1 to 128"),
    "long nonce": (handler("nonce: " + "x" * 129), 2, "nonce", "must not be 'xxx"),
    "number as nonce": (handler("nonce: 1"), 2, "nonce", "must be text, in quotes, not a number"),
    "NUL in nonce": (handler('nonce: "a\\0"'), 2, "nonce", "has a NUL character"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_reported_with_its_field_and_line(case: str) -> None:
    text, line, field, part = CASES[case]
    with pytest.raises(BadManifest) as refused:
        parse_manifests(text, "job.yaml")
    (fault,) = refused.value.faults
    assert fault.startswith(f"job.yaml:{line}: {field}: " if field else f"job.yaml:{line}: ")
    assert part in fault
    assert len(fault) < 400, "a fault can be read"
    assert fault.isprintable(), "a fault is one line"


def test_the_cases_are_as_many_as_promised_and_different() -> None:
    assert len(CASES) >= 70
    assert len({text for text, *_ in CASES.values()}) == len(CASES)


def test_all_faults_of_all_documents_are_reported_in_their_order() -> None:
    text = "\n".join(
        (
            "kind: Demo",
            "priority: 9",
            "lease: 0",
            "---",
            "kind: demo.task",
            "---",
            "command: [1, 2]",
            "env: {A: &a b, C: 1}",
            "payload: .nan",
            "---",
            "kind: [",
        )
    )
    with pytest.raises(BadManifest) as refused:
        parse_manifests(text, "a.yaml")
    answer = [fault.split("; ")[0] for fault in refused.value.faults]
    assert answer[:-1] == [
        "a.yaml:1: kind: must not be 'Demo'",
        "a.yaml:2: priority: must not be 9",
        "a.yaml:3: lease: 0 is too short",
        "a.yaml:7: command[0]: must be text, in quotes, not a number",
        "a.yaml:7: command[1]: must be text, in quotes, not a number",
        "a.yaml:7: timeout: is missing: a command needs one, 0 for no limit",
        "a.yaml:8: env.A: &a is an anchor, which is not allowed",
        "a.yaml:8: env.C: must be text, in quotes, not a number",
        "a.yaml:9: payload: .nan is no number of JSON",
    ]
    assert answer[-1].startswith("a.yaml:11: this is no YAML and no JSON")


def test_of_very_many_faults_this_many_are_reported_and_the_others_counted() -> None:
    lines = "\n".join(f"field{number}: 1" for number in range(MAX_FAULTS + 7))
    with pytest.raises(BadManifest) as refused:
        parse_manifests(handler(lines), "a")
    assert len(refused.value.faults) == MAX_FAULTS + 1
    assert refused.value.faults[-1] == "a: and 7 more faults"


@pytest.mark.parametrize("opening", ["[", "{", "{[", "{? ", "- ", "? "])
def test_nesting_without_end_is_refused_at_once(opening: str) -> None:
    with pytest.raises(BadManifest, match="nested more than 128 deep"):
        parse_manifests(opening * (2**19 // len(opening)))
