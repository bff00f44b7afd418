"""Bugs of hooks and the guard. Agents that edit a repository find them."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

HOST_PLANTS: Final = (
    PlantedBug(
        "guard-lets-all-in",
        "the guard of a repository lets in every commit",
        (
            Code(
                "vox_mesh.cli.locks.guard:_report",
                "return ExitCode.NO if found.obstacles or found.unlocked else ExitCode.DONE",
                "return ExitCode.DONE",
            ),
        ),
        ("edits-under-locks", "only-allowed-committed"),
        instrument=Instrument.EDITING,
    ),
    PlantedBug(
        "denial-not-sent",
        "an edit that is denied is answered to its host like one that is allowed",
        (
            Code(
                "vox_mesh.hosts.hooks.formats.claude:render",
                "if decision.denied and event.name == BEFORE_TOOL:",
                "if False:",
            ),
        ),
        ("hook-and-guard-agree",),
        instrument=Instrument.EDITING,
    ),
    PlantedBug(
        "denial-without-holder",
        "the reason of a denied edit names no holder",
        (
            Code(
                "vox_mesh.hosts.hooks.wording:held_reason",
                "for each in found[:_MAX_NAMED]:",
                "for each in found[:0]:",
            ),
        ),
        ("refusals-explained",),
        instrument=Instrument.EDITING,
    ),
)
