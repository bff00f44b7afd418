"""Retention policies: by age and number, for a subject and for single kinds of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.documents.validation import shown
from vox_mesh.model.retention.subjects import MAX_AGE_MS, MAX_BYTES, MAX_ROWS, MIN_AGE_MS, RULES, Subject

ALL_KINDS: Final = ""
"""In place of a kind: all kinds without a policy of their own."""

MAX_KIND: Final = 128


class Policy(NamedTuple):
    """How long rows are kept. `None`: whatever their age, their number, or their bytes.

    A row is pruned if one of the three says so. The number and the bytes bound the rows of the kind, or of
    all kinds without a policy of their own together.
    """

    subject: Subject
    kind: str
    age_ms: int | None
    max_rows: int | None
    max_bytes: int | None = None
    is_default: bool = False


class RetentionPolicies:
    """The policies in force: the ones that were set, and the defaults."""

    def __init__(self, given: Iterable[Policy] = (), defaults: Mapping[Subject, int] | None = None) -> None:
        """`defaults` are ages that replace those in code."""
        ages = {subject: rule.age_ms for subject, rule in RULES.items()} | dict(defaults or {})
        self._by_kind = {
            (subject, ALL_KINDS): Policy(subject, ALL_KINDS, age_ms, None, is_default=True)
            for subject, age_ms in ages.items()
        }
        self._by_kind |= {(policy.subject, policy.kind): policy for policy in given}

    def of(self, subject: Subject, kind: str) -> Policy:
        """Return the policy that applies to a kind."""
        return self._by_kind.get((subject, kind)) or self._by_kind[subject, ALL_KINDS]

    def own_kinds(self, subject: Subject) -> list[str]:
        """Return the kinds with a policy of their own."""
        return [kind for each, kind in self._by_kind if each == subject and kind != ALL_KINDS]

    def of_subject(self, subject: Subject) -> list[Policy]:
        """Return all policies of a subject."""
        return [policy for (each, _), policy in self._by_kind.items() if each == subject]

    def shortest_age_ms(self, subject: Subject) -> int | None:
        """Return the age below which no row is pruned by its age; `None` if none ever is."""
        ages = [policy.age_ms for policy in self.of_subject(subject) if policy.age_ms is not None]
        return min(ages, default=None)

    def listed(self) -> list[Policy]:
        """Return all policies, by subject and kind."""
        order = list(Subject)
        return sorted(self._by_kind.values(), key=lambda each: (order.index(each.subject), each.kind))


def checked_policy(
    subject: str, kind: str, age_ms: int | None, max_rows: int | None, max_bytes: int | None = None
) -> Policy:
    """Return the policy; raise `BadValue` if there can't be such a one."""
    try:
        named = Subject(subject)
    except ValueError:
        known = ", ".join(Subject)
        raise BadValue(f"subject must be one of {known}, got {shown(subject)}") from None
    rule = RULES[named]
    if kind != ALL_KINDS and (rule.kind_is is None or len(kind) > MAX_KIND or not kind.isprintable()):
        what = "no kinds" if rule.kind_is is None else f"kinds of up to {MAX_KIND} printable characters"
        raise BadValue(f"{named} have {what}, got {shown(kind)}", hint="leave out the kind")
    _check_range("age", age_ms, MIN_AGE_MS, MAX_AGE_MS)
    if max_rows is not None and not rule.can_count:
        raise BadValue(f"{named} are pruned by age only", hint="leave out the number of rows")
    if max_bytes is not None and not rule.can_weigh:
        raise BadValue(f"{named} are not pruned by their size", hint="leave out the number of bytes")
    _check_range("max_rows", max_rows, 0, MAX_ROWS)
    _check_range("max_bytes", max_bytes, 0, MAX_BYTES)
    return Policy(named, kind, age_ms, max_rows, max_bytes)


def _check_range(name: str, value: object, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        unit = " ms" if name == "age" else ""
        raise BadValue(f"{name} must be between {least} and {most}{unit}, got {shown(value)}")


def policy_of_op(payload: Mapping[str, Any]) -> Policy:
    """Return the policy that an op sets. Raises `BadValue` or one of `KeyError`, `TypeError`."""
    kind = payload["kind"]
    if not isinstance(kind, str):
        raise BadValue(f"kind must be a text, got {shown(kind)}")
    limits = (payload.get(name) for name in ("age_ms", "max_rows", "max_bytes"))
    return checked_policy(payload["subject"], kind, *limits)
