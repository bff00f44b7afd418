"""All planted bugs, by name."""

from __future__ import annotations

from typing import Final

from proof.mutants.agents import AGENT_PLANTS
from proof.mutants.authenticity import AUTHENTICITY_PLANTS
from proof.mutants.backups import BACKUP_PLANTS
from proof.mutants.commands import COMMAND_PLANTS
from proof.mutants.discovery import DISCOVERY_PLANTS
from proof.mutants.disk import DISK_PLANTS
from proof.mutants.file import FILE_PLANTS
from proof.mutants.frameworks import FRAMEWORK_PLANTS
from proof.mutants.grants import GRANT_PLANTS
from proof.mutants.hooks import HOOK_PLANTS
from proof.mutants.hostile import HOSTILE_PLANTS
from proof.mutants.hosts import HOST_PLANTS
from proof.mutants.jobs import JOB_PLANTS
from proof.mutants.locks import LOCK_PLANTS
from proof.mutants.messages import MESSAGE_PLANTS
from proof.mutants.oplog import LOG_PLANTS
from proof.mutants.reads import READ_PLANTS
from proof.mutants.rhythm import RHYTHM_PLANTS
from proof.mutants.rollback import ROLLBACK_PLANTS
from proof.mutants.schema import SCHEMA_PLANTS
from proof.mutants.steps import STEP_PLANTS
from proof.mutants.store import STORE_PLANTS
from proof.mutants.upgrades import UPGRADE_PLANTS

PLANTS: Final = {
    plant.name: plant
    for plants in (
        LOCK_PLANTS,
        ROLLBACK_PLANTS,
        STORE_PLANTS,
        SCHEMA_PLANTS,
        DISK_PLANTS,
        FILE_PLANTS,
        LOG_PLANTS,
        BACKUP_PLANTS,
        MESSAGE_PLANTS,
        JOB_PLANTS,
        STEP_PLANTS,
        FRAMEWORK_PLANTS,
        RHYTHM_PLANTS,
        AUTHENTICITY_PLANTS,
        GRANT_PLANTS,
        HOOK_PLANTS,
        HOSTILE_PLANTS,
        READ_PLANTS,
        AGENT_PLANTS,
        COMMAND_PLANTS,
        DISCOVERY_PLANTS,
        HOST_PLANTS,
        UPGRADE_PLANTS,
    )
    for plant in plants
}
