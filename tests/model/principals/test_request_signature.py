"""Signatures of requests: what they cover, and which texts are refused."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import encode
from vox_mesh.model.principals.request_signature import HEADERS, Audience, RequestSignature, sign_request

TIME_MS: Final = 1_700_000_000_123
NONCE: Final = encode(TIME_MS, 2**79 + 5)
AUDIENCE: Final = Audience("demo/…", "a/b", "node-1")
KEY: Final = SigningKey(Ed25519PrivateKey.generate())
BODY: Final = b'{"count":1}'


def signed(agent: str = "builder", body: bytes = BODY, audience: Audience = AUDIENCE) -> dict[str, str]:
    return sign_request(KEY, agent, audience, "POST", "/v1/jobs/take?x=%20y", body, NONCE)


def test_a_signature_is_one_of_http_message_signatures() -> None:
    headers = signed("Åsa/1")

    digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
    params = (
        '("@method" "@request-target" "content-digest");created=1700000000;keyid="%C3%85sa%2F1"'
        f';nonce="{NONCE}";alg="ed25519";tag="vox-mesh:demo%2F%E2%80%A6/a%2Fb/node-1"'
    )
    base = (
        f'"@method": POST\n"@request-target": /v1/jobs/take?x=%20y\n"content-digest": sha-256=:{digest}:\n'
        f'"@signature-params": {params}'
    )
    assert headers["Signature-Input"] == f"vox={params}"
    assert headers["Content-Digest"] == f"sha-256=:{digest}:"
    proof = base64.b64decode(headers["Signature"].removeprefix("vox=:").removesuffix(":"))
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public.removeprefix("ed25519:")))
    public.verify(proof, base.encode())


@pytest.mark.parametrize("audience", [AUDIENCE, AUDIENCE._replace(scope_id="")])
@pytest.mark.parametrize("agent", ["builder", "Åsa/1", 'quote"d', "a b", "100%", "名"])
def test_a_signature_names_its_agent_its_node_and_its_time(agent: str, audience: Audience) -> None:
    read = RequestSignature.read(signed(agent, audience=audience))
    assert read is not None
    assert (read.agent, Audience.parse(read.audience), read.time_ms) == (agent, audience, TIME_MS)
    assert read.is_by(KEY.public, "POST", "/v1/jobs/take?x=%20y")
    assert read.is_of(BODY)


def test_a_signature_is_of_its_key_method_target_and_body_only() -> None:
    read = RequestSignature.read(signed())
    assert read is not None
    other = SigningKey(Ed25519PrivateKey.generate()).public
    assert not read.is_by(other, "POST", "/v1/jobs/take?x=%20y")
    assert not read.is_by(KEY.public, "GET", "/v1/jobs/take?x=%20y")
    assert not read.is_by(KEY.public, "POST", "/v1/jobs/take?x=y")
    assert not read.is_by(KEY.public, "POST", "/v1/jobs/take")
    assert not read.is_of(BODY + b" ")
    for name, old, new in (
        ("Content-Digest", "sha-256=:", "sha-256=:A"),
        ("Signature-Input", "builder", "builder2"),
        ("Signature-Input", "node-1", "node-2"),
        ("Signature-Input", NONCE, encode(TIME_MS, 7)),
    ):
        headers = signed()
        changed = RequestSignature.read({**headers, name: headers[name].replace(old, new)})
        assert changed is not None
        assert not changed.is_by(KEY.public, "POST", "/v1/jobs/take?x=%20y")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Signature-Input", "vox=", "sig1="),
        ("Signature-Input", ' "content-digest"', ""),
        ("Signature-Input", ";created=1700000000", ""),
        ("Signature-Input", "created=1700000000", "created=1700000001"),
        ("Signature-Input", "created=1700000000", "created=1700000000;expires=9"),
        ("Signature-Input", "created=1700000000", "created=\uff11700000000"),
        ("Signature-Input", 'alg="ed25519"', 'alg="hmac-sha256"'),
        ("Signature-Input", "builder", "b%75ilder"),
        ("Signature-Input", "builder", "%ff"),
        ("Signature-Input", NONCE, NONCE.lower()),
        ("Signature-Input", NONCE, "8" + NONCE[1:]),
        ("Signature-Input", "node-1", "node-1/x"),
        ("Signature-Input", "node-1", "n" * 9_000),
        ("Signature", "vox=:", "vox=:A"),
        ("Signature", "==:", "==:, vox=:" + "A" * 86 + "==:"),
    ],
)
def test_a_malformed_signature_is_none(name: str, old: str, new: str) -> None:
    headers = signed()
    assert old in headers[name]
    assert RequestSignature.read({**headers, name: headers[name].replace(old, new)}) is None


def test_a_request_without_each_header_is_not_signed() -> None:
    for name in HEADERS[1:]:
        assert RequestSignature.read({key: value for key, value in signed().items() if key != name}) is None
    read = RequestSignature.read({key: value for key, value in signed().items() if key != HEADERS[0]})
    assert read is not None
    assert not read.is_by(KEY.public, "POST", "/v1/jobs/take?x=%20y")


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c/d", "a//c"])
def test_an_audience_has_three_parts(text: str) -> None:
    with pytest.raises(BadValue, match="scope/repository/node"):
        Audience.parse(text)
