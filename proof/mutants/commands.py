"""Bugs of commands: of the command server and its callers, and of joining and starting a server.

The tests of attacks find them.
"""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

COMMAND_PLANTS: Final = (
    PlantedBug(
        "command-of-anyone",
        "the command server runs commands of every user that can connect",
        (
            Code(
                "vox_mesh.cli.command_server.server:CommandServer.accept",
                "if user != os.geteuid():",
                "if user < 0:",
            ),
        ),
        ("test_a_command_of_another_user_is_not_run",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "command-repeated",
        "a caller whose answer is lost runs the command itself, though the server may have run it",
        (Code("vox_mesh.cli.command_server.client:_wait", "return OUTCOME_UNKNOWN", "return None"),),
        ("test_a_command_is_not_repeated_after_its_answer_is_lost",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "command-of-another-mesh",
        "the command server runs commands whose settings name another database",
        (
            Code(
                "vox_mesh.cli.command_server.served:ServedCommand._is_same_mesh",
                "target_of(settings) == self._served.target",
                "bool(target_of(settings))",
            ),
        ),
        ("test_settings_of_another_mesh_are_not_served",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "join-approves-hidden",
        "joining a mesh approves settings that a quote in the file .env of the folder hides",
        (
            Code(
                "vox_mesh.settings.env_writer:with_variables",
                "if _settings_in(text) != {**kept, **values}:",
                "if False:",
            ),
        ),
        ("test_joining_a_mesh_approves_no_setting_that_the_folder_brought",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "server-without-tokens",
        "a server is started without a public key, so that it asks for no token",
        (
            Code(
                "vox_mesh.contrib.sqld.launch:_check_key",
                "if _PUBLIC_KEY not in content:",
                "if False:",
            ),
        ),
        ("test_no_server_starts_without_the_key_that_its_tokens_are_checked_with",),
        instrument=Instrument.ATTACKS,
    ),
)
