"""Bugs that only an attacker finds: bad input makes the service fail, and forgeries are believed."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

HOSTILE_PLANTS: Final = (
    PlantedBug(
        "bad-input-crashes",
        "a body that does not fit makes the handler fail, and is not refused",
        (
            Code(
                "vox_mesh.http.api.performer:_validate",
                "bad_request(where, _first_fault(error))",
                "KeyError(where)",
            ),
        ),
        ("no-500", "nothing-fails"),
        instrument=Instrument.HOSTILE,
    ),
    PlantedBug(
        "forged-delivered",
        "the signatures of messages are checked, and the result is ignored",
        (
            Code(
                "vox_mesh.messages.signatures:SenderVerifier.verify",
                "return results",
                "return [True] * len(results)",
            ),
        ),
        ("messages-authentic", "keys-authentic"),
        instrument=Instrument.HOSTILE,
    ),
    PlantedBug(
        "changed-output-given",
        "a stored output is given to a successor whatever its hash",
        (
            Code(
                "vox_mesh.jobs.proof.artifacts:_inline_body",
                "if body is None or hash_of(body) != content_hash:",
                "if body is None:",
            ),
        ),
        ("outputs-authentic",),
        instrument=Instrument.HOSTILE,
    ),
)
