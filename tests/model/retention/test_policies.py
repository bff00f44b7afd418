"""RetentionPolicies: the defaults, the ones that were set, and what they may say."""

from __future__ import annotations

import pytest

from vox_mesh.errors import BadValue
from vox_mesh.model.retention.policies import Policy, RetentionPolicies, checked_policy, policy_of_op
from vox_mesh.model.retention.subjects import DAY_MS, RULES, Subject


def test_without_a_policy_the_default_applies() -> None:
    policy = RetentionPolicies().of(Subject.JOBS, "build")
    assert (policy.age_ms, policy.max_rows, policy.is_default) == (30 * DAY_MS, None, True)
    assert len(RetentionPolicies().listed()) == len(RULES) == len(Subject)


def test_a_kind_with_a_policy_of_its_own_has_no_other() -> None:
    given = [Policy(Subject.JOBS, "build", None, 5), Policy(Subject.JOBS, "", 7, None)]
    policies = RetentionPolicies(given)
    assert policies.of(Subject.JOBS, "build") == given[0]
    assert policies.of(Subject.JOBS, "test") == given[1]
    assert policies.own_kinds(Subject.JOBS) == ["build"]
    assert policies.shortest_age_ms(Subject.JOBS) == 7


@pytest.mark.parametrize(
    ("subject", "kind", "age_ms", "max_rows", "named"),
    [
        ("gobs", "", 1_000, None, "subject must be one of jobs, logs"),
        ("jobs", "", 999, None, "age must be between 1000 and"),
        ("jobs", "", 1.5, None, "age must be between"),
        ("jobs", "", None, -1, "max_rows must be between 0 and"),
        ("logs", "", None, 5, "logs are pruned by age only"),
        ("jobs", "x" * 129, None, 5, "kinds of up to 128"),
    ],
)
def test_a_policy_that_can_not_be_is_refused(
    subject: str, kind: str, age_ms: int | None, max_rows: int | None, named: str
) -> None:
    with pytest.raises(BadValue, match=named):
        checked_policy(subject, kind, age_ms, max_rows)


def test_an_op_says_what_it_sets() -> None:
    op = {"subject": "jobs", "kind": "build", "age_ms": 5_000, "max_rows": None}
    assert policy_of_op(op) == Policy(Subject.JOBS, "build", 5_000, None)
    with pytest.raises(BadValue):
        policy_of_op({**op, "kind": 5})
