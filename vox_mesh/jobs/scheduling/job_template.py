"""Job templates: the stored manifest of a cron or rule, which makes many jobs that differ by their nonces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.jobs.manifest import Manifest

_SINGLE_JOB_FIELDS: Final = ("ulid", "nonce", "after", "run_at", "retry_of")
_OPTIONS: Final = ("priority", "max_attempts", "max_interruptions", "at", "during")
_DURATIONS: Final = ("backoff", "lease")
_MILLISECOND: Final = timedelta(milliseconds=1)


class JobTemplate(NamedTuple):
    """The core of a manifest without a nonce, and its scheduling options, as they are stored."""

    manifest: str
    options: str

    @classmethod
    def of(cls, manifest: Manifest, noun: str) -> JobTemplate:
        """Return the template of a manifest. Raises `BadManifest` if it can't describe many jobs."""
        single = [each for each in _SINGLE_JOB_FIELDS if getattr(manifest, each)]
        if single:
            raise BadManifest([f"{each}: is for one job only, and a {noun} makes many" for each in single])
        options = {each: getattr(manifest, each) for each in _OPTIONS}
        options |= {"backoff": manifest.backoff_ms, "lease": manifest.lease_ms}
        given = orjson.dumps({each: value for each, value in options.items() if value is not None})
        return cls(canonical(manifest.core(), max_depth=None), given.decode())

    def job(self, nonce: str) -> Manifest:
        """Return the manifest of one job, identical on every node. Raises `BadValue` for a hostile row."""
        options, core = read_stored(self.options), read_stored(self.manifest)
        if not isinstance(options, dict) or not isinstance(core, dict):
            raise BadValue("the options and the manifest must be objects")
        options |= {name: options[name] * _MILLISECOND for name in _DURATIONS if name in options}
        update: dict[str, Any] = {**options, "nonce": nonce}
        return Manifest.of_core(core).model_copy(update=update)
