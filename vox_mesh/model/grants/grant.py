"""Grants: signed documents by which an agent may act, and delegate a part of what it may.

The owner of the mesh signs the first grant of a chain, and each agent the delegations of its own. A
delegation is narrower than its parent in every dimension, or equal: its capabilities, rates, open items,
validity, budget, and how many delegations may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import SigningKey, checked_public_key, is_signed
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.grants.capability import ASK, CAN, Act, Capability
from vox_mesh.model.messages.records import checked_agent

MAX_LINKS: Final = 8
"""The maximum number of grants in a chain, from the owner's to the last delegation."""

MAX_CAPABILITIES: Final = 64
MAX_BYTES: Final = 32 * 1024
_MAX_NUMBER: Final = 2**53 - 1
_VERSION: Final = 1
_PREFIX: Final = b"vox-mesh grant\n"
_FIELDS: Final = frozenset(
    (*("v", "id", "by", "agent", "key", "parent", "from", "until"), CAN, ASK, "budget", "delegations")
)


class Terms(NamedTuple):
    """What a grant allows, and within which limits. Times are of hybrid clocks, in milliseconds."""

    capabilities: tuple[Capability, ...]
    from_ms: int
    until_ms: int | None = None
    budget: int | None = None
    delegations: int = 0
    """How many delegations may follow, one of the other."""

    def covers(self, other: Terms) -> bool:
        """Return whether the other is narrower in each dimension, or equal."""
        return self.excess(other) is None

    def excess(self, other: Terms) -> str | None:
        """Return the first part in which the other is wider, or `None`."""
        for each in other.capabilities:
            if not any(own.covers(each) for own in self.capabilities):
                return f"`{each}`"
        if other.from_ms < self.from_ms:
            return "its begin"
        if self.until_ms is not None and (other.until_ms is None or other.until_ms > self.until_ms):
            return "its end"
        if self.budget is not None and (other.budget is None or other.budget > self.budget):
            return "its budget"
        return "its delegations" if other.delegations > self.delegations else None

    def find(self, act: Act) -> Capability | None:
        """Return the capability that covers an act: first one without approval, then one without limits."""
        found = [each for each in self.capabilities if each.act.covers(act)]
        return min(found, key=lambda each: (each.asks, each.is_limited), default=None)

    @property
    def are_limited(self) -> bool:
        """Return whether they have a budget, a rate, or a limit on open items."""
        return self.budget is not None or any(each.is_limited for each in self.capabilities)

    def is_valid_at(self, time_ms: int) -> bool:
        """Return whether a time is within its validity."""
        return self.from_ms <= time_ms and (self.until_ms is None or time_ms < self.until_ms)


class Grant(NamedTuple):
    """One grant: who gave it to which agent, by which key, and its terms.

    `key` is the agent's public key: without one the agent can't delegate.
    """

    grant_id: str
    issuer_key: str
    agent: str
    agent_key: str | None
    parent_id: str | None
    terms: Terms

    @property
    def text(self) -> str:
        """Return the document as canonical JSON."""
        terms = self.terms
        return canonical(
            {
                "v": _VERSION,
                "id": self.grant_id,
                "by": self.issuer_key,
                "agent": self.agent,
                "key": self.agent_key,
                "parent": self.parent_id,
                "from": terms.from_ms,
                "until": terms.until_ms,
                CAN: [each.terms for each in terms.capabilities if not each.asks],
                ASK: [each.terms for each in terms.capabilities if each.asks],
                "budget": terms.budget,
                "delegations": terms.delegations,
            }
        )

    @classmethod
    def read(cls, text: str) -> Grant:
        """Return the grant of a document; raise `BadValue` if any part of it is unknown or invalid."""
        if len(text) > MAX_BYTES:
            raise BadValue(f"grant must be at most {MAX_BYTES} bytes, got {len(text)}")
        read: Any = parse(text)
        if not isinstance(read, dict) or read.keys() != _FIELDS or read["v"] != _VERSION:
            raise BadValue("grant must have the fields of version 1 and no others")
        lines = [(each, word == ASK) for word in (CAN, ASK) for each in _texts(read[word])]
        terms = Terms(
            tuple(Capability.parse(each)._replace(asks=asks) for each, asks in lines),
            *(_number(read, name) for name in ("from", "until", "budget", "delegations")),
        )
        key, parent = (None if read[name] is None else _text(read, name) for name in ("key", "parent"))
        grant = cls(_text(read, "id"), _text(read, "by"), _text(read, "agent"), key, parent, terms)
        _check(grant)
        if grant.text != text:
            raise BadValue("grant is not written in its canonical form")
        return grant

    def sign(self, key: SigningKey, scope_id: str) -> SignedGrant:
        """Return the document with its issuer's signature; raise `BadValue` if the grant is invalid."""
        Grant.read(self.text)
        return SignedGrant(self.text, key.sign(_signed_text(self.text, scope_id)))


class SignedGrant(NamedTuple):
    """A document, and the signature of its issuer."""

    document: str
    signature: str

    @property
    def payload(self) -> str:
        """Return the payload of the op that records it."""
        return canonical({"grant": self.document, "signature": self.signature})

    @classmethod
    def from_payload(cls, payload: str) -> SignedGrant:
        """Return what an op records; raise `BadValue` if it is no signed grant."""
        read: Any = parse(payload)
        if not isinstance(read, dict) or read.keys() != {"grant", "signature"}:
            raise BadValue("op of a grant must have a grant and a signature")
        return cls(_text(read, "grant"), _text(read, "signature"))

    def verified(self, scope_id: str) -> Grant:
        """Return the grant; raise `BadValue` unless its issuer has signed it."""
        grant = Grant.read(self.document)
        if not is_signed(_signed_text(self.document, scope_id), self.signature, grant.issuer_key):
            raise BadValue(f"grant {grant.grant_id} is not signed by its issuer")
        return grant


def delegation_fault(parent: Grant, child: Grant) -> str | None:
    """Return why a grant can't be delegated like this, or `None`."""
    if child.parent_id != parent.grant_id:
        return f"it names another parent than {parent.grant_id}"
    if parent.agent_key is None or child.issuer_key != parent.agent_key:
        return f"it is not issued by {parent.agent}, who has the parent"
    if parent.terms.delegations < 1:
        return "its parent can't be delegated further"
    excess = parent.terms._replace(delegations=parent.terms.delegations - 1).excess(child.terms)
    return None if excess is None else f"{excess} is wider than in its parent"


def chain_fault(chain: Sequence[Grant], owner_key: str | None) -> str | None:
    """Return why a chain of grants, the owner's first, gives no authority; or `None`."""
    if not chain or len(chain) > MAX_LINKS:
        return f"it must have 1 to {MAX_LINKS} links, got {len(chain)}"
    if chain[0].parent_id is not None or owner_key is None or chain[0].issuer_key != owner_key:
        return "it does not begin with a grant of the owner"
    faults = (delegation_fault(*pair) for pair in pairwise(chain))
    return next((each for each in faults if each is not None), None)


def _signed_text(document: str, scope_id: str) -> bytes:
    return b"%b%b\n%b" % (_PREFIX, scope_id.encode(), document.encode())


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadValue("capabilities must be a list of texts")
    return value


def _text(read: Mapping[str, Any], name: str) -> str:
    if not isinstance(value := read[name], str):
        raise BadValue(f"{name} must be text, got {value!r}")
    return value


def _number(read: Mapping[str, Any], name: str) -> Any:
    value = read[name]
    if value is None and name in ("until", "budget"):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise BadValue(f"{name} must be a whole number, got {value!r}")
    return int(value)


def _check(grant: Grant) -> None:
    terms = grant.terms
    for name in (grant.grant_id, *(() if grant.parent_id is None else (grant.parent_id,))):
        if not is_ulid(name):
            raise BadValue(f"id of a grant must be a ULID, got {name!r}")
    for key in (grant.issuer_key, *(() if grant.agent_key is None else (grant.agent_key,))):
        checked_public_key(key)
    checked_agent(grant.agent)
    if not 1 <= len(terms.capabilities) <= MAX_CAPABILITIES:
        raise BadValue(
            f"number of capabilities must be from 1 to {MAX_CAPABILITIES}, got {len(terms.capabilities)}",
            hint="name at least one, such as `lock.acquire on file:src/**`",
        )
    if not 0 <= terms.delegations < MAX_LINKS:
        raise BadValue(f"delegations must be from 0 to {MAX_LINKS - 1}, got {terms.delegations}")
    if not 0 <= terms.from_ms <= _MAX_NUMBER or (
        terms.until_ms is not None and not terms.from_ms < terms.until_ms <= _MAX_NUMBER
    ):
        raise BadValue("end of a grant must be later than its begin", hint="choose a later end")
    if terms.budget is not None and not 0 < terms.budget <= _MAX_NUMBER:
        raise BadValue(f"budget of a grant must be positive, got {terms.budget}")
