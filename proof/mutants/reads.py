"""Bugs that let one client's reads stand in the way of others."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

READ_PLANTS: Final = (
    PlantedBug(
        "reads-not-limited",
        "any number of requests that read everything run at a time",
        (
            Code(
                "vox_mesh.http.api.operations:Operation.load_of",
                "return self.load if waits",
                "return Load.WRITE if self.load is Load.SCAN else self.load if waits",
            ),
        ),
        ("test_a_token_reads_everything_once_at_a_time_and_leaves_a_place_for_others",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "waits-in-one-pool",
        "reads that wait take the places of requests that wait for locks",
        (
            Code(
                "vox_mesh.http.admission:Admission.place",
                "pool = self._pools.get(load)",
                "pool = self._pools.get(Load.WAIT if load is Load.LOCK_WAIT else load)",
            ),
            Code("vox_mesh.http.admission:AdmissionPool._share_of", "return max(", "return 256 or max("),
        ),
        ("test_reads_that_wait_keep_no_lock_and_no_other_token_from_waiting",),
        instrument=Instrument.ATTACKS,
    ),
)
