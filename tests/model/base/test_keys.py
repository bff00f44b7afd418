"""Keys and signatures as text: the standard's vector, and nothing but exactly what was signed."""

from __future__ import annotations

from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oplog.chains import key_named
from tests.support.running.examples import few
from vox_mesh.model.base.keys import SigningKey, is_public_key, is_signed

# RFC 8032, 7.1, test 1: an empty message.
SECRET: Final = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC: Final = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
SIGNATURE: Final = (
    "ed25519:e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bac"
    "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)
ORDER: Final = 2**252 + 27742317777372353535851937790883648493

KEY: Final = key_named("a")


def test_the_standards_vector() -> None:
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SECRET)))
    assert key.public == PUBLIC
    assert key.sign(b"") == SIGNATURE
    assert is_signed(b"", SIGNATURE, PUBLIC)


@few
@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_signature_is_one_of_its_message_and_key_alone(message: bytes, other: bytes) -> None:
    signature = KEY.sign(message)
    assert is_signed(message, signature, KEY.public)
    assert is_signed(other, signature, KEY.public) is (message == other)
    assert not is_signed(message, signature, key_named("b").public)


@few
@given(st.integers(0, 511))
def test_any_changed_bit_of_a_signature_is_noticed(bit: int) -> None:
    prefix, digits = KEY.sign(b"text").split(":")
    changed = int(digits, 16) ^ (1 << bit)
    assert not is_signed(b"text", f"{prefix}:{changed:0128x}", KEY.public)


def test_a_signature_has_no_second_form() -> None:
    """Its number is taken modulo the order of the group, so that a larger one would fit as well."""
    raw = bytes.fromhex(SIGNATURE.removeprefix("ed25519:"))
    larger = int.from_bytes(raw[32:], "little") + ORDER
    assert not is_signed(b"", "ed25519:" + (raw[:32] + larger.to_bytes(32, "little")).hex(), PUBLIC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        PUBLIC[:-1],
        PUBLIC + "0",
        PUBLIC + "\n",
        PUBLIC.upper(),
        PUBLIC.replace("d75a", "D75A"),
        PUBLIC.replace("ed25519:", "ed448:"),
        PUBLIC.removeprefix("ed25519:"),
        " " + PUBLIC,
        PUBLIC.replace("d7", "\u0661\u0662"),
    ],
)
def test_what_is_no_public_key_is_reported_and_signs_nothing(text: str) -> None:
    assert not is_public_key(text)
    assert not is_signed(b"", SIGNATURE, text)


@pytest.mark.parametrize(
    "point", ["00" * 32, "01" + "00" * 31, "00" * 31 + "80", "ec" + "ff" * 31, "ed" + "ff" * 30 + "7f"]
)
def test_a_key_with_which_everyone_can_sign_is_none(point: str) -> None:
    """A point of small order: for one message in a few, zeros are a valid signature."""
    assert not is_public_key(f"ed25519:{point}")
    for number in range(16):
        assert not is_signed(b"%d" % number, "ed25519:" + "00" * 64, f"ed25519:{point}")
        assert not is_signed(b"%d" % number, f"ed25519:{point}" + "00" * 32, f"ed25519:{point}")


def test_a_public_key_is_reported() -> None:
    assert is_public_key(PUBLIC)
    assert is_public_key(KEY.public)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        SIGNATURE[:-1],
        SIGNATURE + "0",
        SIGNATURE + "\n",
        SIGNATURE.upper(),
        SIGNATURE.replace("e556", "E556"),
        SIGNATURE.removeprefix("ed25519:"),
        PUBLIC,
    ],
)
def test_a_signature_in_another_form_is_none(text: str) -> None:
    assert not is_signed(b"", text, PUBLIC)


@few
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_any_key_and_signature_are_judged(key: bytes, signature: bytes) -> None:
    assert not is_signed(b"text", f"ed25519:{signature.hex()}", f"ed25519:{key.hex()}")
