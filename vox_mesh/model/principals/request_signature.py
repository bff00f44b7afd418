"""Signatures of requests: an agent signs each request to a node with its own key.

A profile of HTTP Message Signatures (RFC 9421) with `Content-Digest` (RFC 9530), exact to the byte:

    Content-Digest: sha-256=:<base64>:
    Signature-Input: vox=("@method" "@request-target" "content-digest");created=<seconds>;
        keyid="<agent>";nonce="<ULID>";alg="ed25519";tag="vox-mesh:<scope>/<repository>/<node>"
    Signature: vox=:<base64>:

`Signature-Input` is one line without spaces after the semicolons. The names in `keyid` and `tag` are
percent-encoded; the scope is empty unless the mesh has set one. The nonce is a ULID of the time at which the
request is signed, and `created` is that time in seconds. The digest is always given, also of an empty body.
No other component or parameter is allowed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import SigningKey, is_signed
from vox_mesh.model.base.ulid import is_ulid, milliseconds_of

CONTENT_DIGEST: Final = "Content-Digest"
SIGNATURE_INPUT: Final = "Signature-Input"
SIGNATURE: Final = "Signature"
HEADERS: Final = (CONTENT_DIGEST, SIGNATURE_INPUT, SIGNATURE)
"""The headers of a signed request. Each is given once."""

MAX_SKEW_MS: Final = 60_000
"""How far the time of a signature may be before the time of the node that checks it."""

MAX_AHEAD_MS: Final = 10_000
"""How far it may be after it."""

_LABEL: Final = "vox="
_TAG: Final = "vox-mesh:"
_MAX_TEXT: Final = 8_192
_PREFIX: Final = "ed25519:"
_NAME: Final = "[A-Za-z0-9_.~%-]"
_PARAMS: Final = re.compile(
    r'\("@method" "@request-target" "content-digest"\);created=([1-9][0-9]{0,14})'
    rf';keyid="({_NAME}+)";nonce="([0-9A-Z]{{26}})";alg="ed25519";tag="{_TAG}({_NAME}*/{_NAME}+/{_NAME}+)"',
    re.ASCII,
)
_SIGNED: Final = re.compile(r"vox=:([A-Za-z0-9+/]{86}==):", re.ASCII)


class Audience(NamedTuple):
    """The node that a request is for. Another one refuses it. The scope may be empty."""

    scope_id: str
    repository_id: str
    node_id: str

    def __str__(self) -> str:
        return "/".join(_quoted(part) for part in self)

    @classmethod
    def parse(cls, text: str) -> Audience:
        """Return the audience that a text names. Raises `BadValue` if it is none."""
        parts = text.split("/")
        if len(parts) != 3 or not all(parts[1:]):
            raise BadValue(f"audience must be scope/repository/node, percent-encoded, got {text[:200]!r}")
        return cls(*map(unquote, parts))


class RequestSignature(NamedTuple):
    """The signature of a request, as its headers give it. Nothing is verified by that."""

    agent: str
    audience: str
    nonce: str
    digest: str
    params: str
    signature: str

    @property
    def time_ms(self) -> int:
        """The time at which it was made, by the clock of the agent."""
        return milliseconds_of(self.nonce)

    def is_by(self, public_key: str, method: str, target: str) -> bool:
        """Return whether this key signed it for a method, and a path with its query as they were sent."""
        message = _signature_base(method, target, self.digest, self.params)
        return is_signed(message, self.signature, public_key)

    def is_of(self, body: bytes) -> bool:
        """Return whether it is the signature of a request with this body."""
        return self.digest == _digest(body)

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> RequestSignature | None:
        """Return the signature in the headers, whose names are as in `HEADERS`; `None` if it is malformed."""
        given, signed = headers.get(SIGNATURE_INPUT, ""), headers.get(SIGNATURE, "")
        if len(given) > _MAX_TEXT or not given.startswith(_LABEL):
            return None
        params = given[len(_LABEL) :]
        found, proof = _PARAMS.fullmatch(params), _SIGNED.fullmatch(signed)
        if found is None or proof is None:
            return None
        created, key_id, nonce, audience = found.groups()
        agent = unquote(key_id, errors="replace")
        is_exact = is_ulid(nonce) and milliseconds_of(nonce) // 1_000 == int(created)
        if not is_exact or _quoted(agent) != key_id:
            return None
        try:
            signature = _PREFIX + base64.b64decode(proof[1], validate=True).hex()
        except binascii.Error:
            return None
        return cls(agent, audience, nonce, headers.get(CONTENT_DIGEST, ""), params, signature)


def sign_request(
    key: SigningKey, agent: str, audience: Audience, method: str, target: str, body: bytes, nonce: str
) -> dict[str, str]:
    """Return the headers that sign a request.

    `target` is the path with its query, byte for byte as in the request. `nonce` is a new ULID each time.
    """
    digest = _digest(body)
    params = (
        f'("@method" "@request-target" "content-digest");created={milliseconds_of(nonce) // 1_000}'
        f';keyid="{_quoted(agent)}";nonce="{nonce}";alg="ed25519";tag="{_TAG}{audience}"'
    )
    signature = key.sign(_signature_base(method, target, digest, params))
    proof = base64.b64encode(bytes.fromhex(signature.removeprefix(_PREFIX))).decode()
    return {
        CONTENT_DIGEST: digest,
        SIGNATURE_INPUT: f"{_LABEL}{params}",
        SIGNATURE: f"{_LABEL}:{proof}:",
    }


def _signature_base(method: str, target: str, digest: str, params: str) -> bytes:
    return (
        f'"@method": {method}\n"@request-target": {target}\n"content-digest": {digest}\n'
        f'"@signature-params": {params}'
    ).encode(errors="surrogateescape")


def _digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _quoted(text: str) -> str:
    return quote(text, safe="")
