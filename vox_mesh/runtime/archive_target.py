"""The archive of the log, and the place of scheduled backups, that the settings choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vox_mesh.errors import BadSettings
from vox_mesh.store.targets.target import FileTarget, FolderTarget

if TYPE_CHECKING:
    from vox_mesh.settings import Settings


def find_archive(settings: Settings) -> FileTarget | None:
    """Return the archive of the log; `None` if there is none. Raises `BadSettings`."""
    is_set = settings.archive_dir is not None or settings.archive_url is not None
    return archive_target(settings) if is_set else None


def archive_target(settings: Settings) -> FileTarget:
    """Return where segments of the log are archived. Raises `BadSettings` if no setting says so."""
    if settings.archive_url is None:
        if settings.archive_dir is None:
            raise BadSettings(
                "the log has no archive: neither VOX_ARCHIVE_DIR nor VOX_ARCHIVE_URL is set",
                hint="for example VOX_ARCHIVE_DIR=/mnt/archive",
            )
        return FolderTarget(settings.archive_dir)
    if settings.archive_dir is not None:
        raise BadSettings(
            "VOX_ARCHIVE_DIR and VOX_ARCHIVE_URL are both set", hint="unset one: the log has one archive"
        )
    if settings.archive_key_id is None or settings.archive_secret is None:
        raise BadSettings(
            "VOX_ARCHIVE_URL needs a key", hint="set VOX_ARCHIVE_KEY_ID and VOX_ARCHIVE_SECRET_FILE"
        )
    from vox_mesh.store.targets.aws_signature import Credentials  # imported late: few meshes have a bucket
    from vox_mesh.store.targets.s3_target import S3Target

    secret = settings.archive_secret.get_secret_value()
    return S3Target(
        settings.archive_url, Credentials(settings.archive_key_id, secret, settings.archive_region)
    )


def backup_target(settings: Settings) -> FileTarget | None:
    """Return where scheduled backups are stored; `None` if there are none. Raises `BadSettings`."""
    if settings.backup_url is None:
        return None if settings.backup_dir is None else FolderTarget(settings.backup_dir, "VOX_BACKUP_DIR")
    if settings.backup_dir is not None:
        raise BadSettings(
            "VOX_BACKUP_DIR and VOX_BACKUP_URL are both set", hint="unset one: backups have one place"
        )
    if settings.backup_key_id is None or settings.backup_secret is None:
        raise BadSettings(
            "VOX_BACKUP_URL needs a key", hint="set VOX_BACKUP_KEY_ID and VOX_BACKUP_SECRET_FILE"
        )
    from vox_mesh.store.targets.aws_signature import Credentials  # imported late: few meshes have a bucket
    from vox_mesh.store.targets.s3_target import S3Target

    secret = settings.backup_secret.get_secret_value()
    credentials = Credentials(settings.backup_key_id, secret, settings.backup_region)
    return S3Target(settings.backup_url, credentials, "VOX_BACKUP")
