"""Manifests: what a job is to do. The content id of a manifest's core is the job's id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.model.base.canonical import content_id, parse
from vox_mesh.model.documents.documents import Document, DocumentFault, Lines, Path, field_text
from vox_mesh.model.documents.validation import Flaw, faults_of, flaws_of, in_words, named, nulls, shortened
from vox_mesh.model.jobs import manifest_fields
from vox_mesh.model.jobs.manifest_fields import EPOCH, MILLISECOND, After, When
from vox_mesh.model.rhythm.boundaries import Until

__all__ = [
    "EXEC",
    "After",
    "Manifest",
    "When",
    "handler_manifest",
    "manifests_at",
    "ordered",
    "outside",
    "parse_manifests",
]

EXEC: Final = "exec"
"""The kind of jobs with a command."""

_HASHED: Final = frozenset(
    {
        *("command", "args", "timeout", "env", "cwd", "inputs", "policy_root"),
        *("kind", "payload", "after", "nonce", "retry_of", "score", "budget"),
    }
)
_ONLY_WITH_COMMAND: Final = ("args", "env", "cwd")
_RULE: Final = "rule"


class Manifest(BaseModel):
    """A job as it is asked for: a command, or a kind with a payload for a handler.

    What is given as `None` is absent, but for the payload, which may be null.
    """

    # Built when the first one is made: most commands make none.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    command: manifest_fields.Command | None = Field(
        None, description="a non-empty array of texts, the program first"
    )
    args: manifest_fields.Texts | None = Field(None, description="an array of texts")
    timeout: manifest_fields.Timeout | None = Field(
        None, description="whole seconds up to 30 days, as 90, 90s, 5m or PT1M30S; 0 for no limit"
    )
    env: manifest_fields.Variables | None = Field(
        None, description="a map of names to texts; names are not empty and have no ="
    )
    cwd: manifest_fields.AbsolutePath | None = Field(None, description="an absolute path")
    inputs: manifest_fields.Inputs | None = Field(None, description="an array of maps, up to 256 KiB")
    policy_root: manifest_fields.PolicyRoot | None = Field(
        None, description="sha256: and 64 lowercase hex digits"
    )
    ulid: manifest_fields.Ulid | None = Field(
        None, description="26 of 0-9 and A-Z but I, L, O and U; the first up to 7"
    )
    kind: manifest_fields.Kind | None = Field(
        None, description="up to 128 of a-z, 0-9, _ and -, in words joined by dots, such as cortex.extract"
    )
    payload: manifest_fields.Json = Field(None, description="any JSON value up to 256 KiB")
    after: manifest_fields.Predecessors | None = Field(
        None,
        description="job ids or 6 and more of their first digits, ULIDs of jobs, "
        "{job: ..., when: success or end}, {op: ULID}; up to 256",
    )
    priority: manifest_fields.Priority | None = Field(None, description="an integer from 0 to 3")
    run_at: manifest_fields.Moment | None = Field(
        None, description="a time with its offset, such as 2030-01-31T08:00:00Z"
    )
    max_attempts: manifest_fields.Attempts | None = Field(None, description="an integer from 1 to 100")
    backoff: manifest_fields.Backoff | None = Field(
        None, description="a duration from 0 to 1d, such as 500ms, 30s or PT1M"
    )
    lease: manifest_fields.Lease | None = Field(
        None, description="a duration from 1s to 1d, such as 30s or PT1M; or phase or bar: until that ends"
    )
    score: manifest_fields.Score | None = None  # what is allowed there, its own rules say
    budget: manifest_fields.Budget | None = None
    nonce: manifest_fields.Nonce | None = Field(None, description="a text of 1 to 128 characters")
    retry_of: manifest_fields.JobId | None = Field(None, description="a job id")

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        for _ in _misfits(self._given()):
            raise PydanticCustomError(_RULE, "the fields do not fit each other")
        return self

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """A manifest made in code; `BadManifest` has all that is wrong with it."""
        return cls._of(fields)

    @classmethod
    def of_core(cls, core: Mapping[str, Any]) -> Self:
        """The manifest that a stored core is of."""
        try:
            plain = parse(orjson.dumps(core))  # large numbers that were written as digits are floats again
        except (orjson.JSONEncodeError, BadValue) as error:
            raise BadManifest([f"this core is no JSON: {error}"]) from None
        manifest = cls._of(plain)
        if manifest.core() != plain:
            raise BadManifest(["this is no core of a manifest: there is more or less in it"])
        return manifest

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise BadManifest(in_words(_flaws(error, fields))) from None

    def _given(self) -> dict[str, Any]:
        fields = self.__dict__
        return {
            name: fields[name]
            for name in self.__pydantic_fields_set__
            if fields[name] is not None or name == "payload"
        }

    def core(self) -> dict[str, Any]:
        """What makes it this job and no other, and is hashed. An empty `after` is as good as none.

        A lease in time is not part of it; one until a phase or a bar ends is: it says how the work goes.
        """
        core = {name: value for name, value in self._given().items() if name in _HASHED}
        if self.command is not None:
            core.pop("kind", None)
            core["command"] = list(self.command)
            core["args"] = list(self.args or ())
        if self.inputs is not None:
            core["inputs"] = list(self.inputs)
        if isinstance(self.lease, Until):
            core["lease"] = self.lease.value
        if after := core.pop("after", None):
            core["after"] = [each.core for each in after]
        return core

    @property
    def content_id(self) -> str:
        """The id of the job, once all jobs that it names are named by their ids."""
        return content_id(self.resolved_core())

    def resolved_core(self) -> dict[str, Any]:
        """The core, once all jobs that it names are named by their ids."""
        if self.unresolved:
            raise BadManifest([f"after: {self.unresolved[0]} is not resolved to a job id"])
        return self.core()

    @property
    def job_kind(self) -> str:
        """The kind of the job."""
        return self.kind or EXEC

    @property
    def unresolved(self) -> list[str]:
        """What stands in `after` for job ids."""
        return [each.job for each in self.after or () if each.job is not None and not each.is_resolved]

    def with_after(self, job_ids: Mapping[str, str]) -> Self:
        """A copy that names jobs by their ids, where `job_ids` has them by what was written."""
        if not any(name in job_ids for name in self.unresolved):
            return self
        after = [each._replace(job=job_ids.get(each.job or "", each.job)) for each in self.after or ()]
        return self._of({**self._given(), "after": after})

    @property
    def timeout_ms(self) -> int | None:
        """How long an attempt may take; 0: as long as it likes."""
        return None if self.timeout is None else self.timeout * 1_000

    @property
    def run_at_ms(self) -> int | None:
        """When it may begin."""
        return None if self.run_at is None else (self.run_at - EPOCH) // MILLISECOND

    @property
    def backoff_ms(self) -> int | None:
        """How long a failed attempt holds back the next one."""
        return None if self.backoff is None else self.backoff // MILLISECOND

    @property
    def lease_ms(self) -> int | None:
        """How long a claim holds, if that is told in time."""
        return self.lease // MILLISECOND if isinstance(self.lease, timedelta) else None


def handler_manifest(kind: str, payload: Any, **fields: Any) -> Manifest:
    """The manifest of a job for a handler."""
    return Manifest.of(kind=kind, payload=payload, **fields)


def _misfits(given: Mapping[str, Any]) -> Iterator[Flaw]:
    """What is wrong between fields, each of which may be right."""
    if "command" in given:
        if "timeout" not in given:
            yield ("timeout",), "is missing: a command needs one, 0 for no limit"
        if given.get("kind", EXEC) != EXEC:
            yield ("kind",), f"a job with a command is of kind {EXEC}; leave this out"
        if "payload" in given:
            yield ("payload",), "is for handlers; a command has args, env and inputs"
        return
    if "kind" not in given:
        yield (), "there must be a command, or a kind that a handler knows"
    elif given["kind"] == EXEC:
        yield ("kind",), f"{EXEC} is the kind of jobs with a command, and there is none"
    for name in _ONLY_WITH_COMMAND:
        if name in given:
            yield (name,), "is of use only with a command"
    if "payload" in given and "kind" not in given:
        yield ("payload",), "is of use only with a kind"


def _flaws(error: ValidationError, fields: Mapping[str, Any]) -> list[Flaw]:
    """What is wrong with the fields, each with what is allowed there."""
    errors = [each for each in error.errors(include_url=False) if each["type"] != _RULE]
    given = {name: value for name, value in fields.items() if value is not None or name == "payload"}
    return [*flaws_of(errors, Manifest, "a manifest"), *_misfits(given)]


# --- files, and batches --------------------------------------------------------------------------


def parse_manifests(text: str | bytes, name: str = "manifest") -> list[Manifest]:
    """The manifests in a text of YAML or JSON; `BadManifest` has the faults of all, each with its line."""
    from vox_mesh.model.documents.yaml_reader import read_documents  # a parser is not for everyone to load

    manifests: list[Manifest] = []
    faults: list[DocumentFault] = []
    documents = read_documents(text, name)
    for document in documents:
        manifest, found = _read(document)
        if found:
            faults += sorted(found, key=lambda fault: fault.line)
        elif manifest is not None:
            manifests.append(manifest)
    if not documents:
        faults.append(DocumentFault(name, 1, (), "there is no manifest in it"))
    if faults:
        raise BadManifest(shortened([*map(str, faults)], name))
    return manifests


def manifests_at(values: Mapping[Path, Any]) -> list[Manifest]:
    """The manifests that these values are; `BadManifest` has the faults of all, each with its place."""
    manifests: list[Manifest] = []
    faults: list[str] = []
    for place, value in values.items():
        manifest, found = _read(Document("", value, (), Lines(1)))
        if manifest is not None:
            manifests.append(manifest)
        faults += [f"{field_text((*place, *fault.path))}: {fault.wrong}" for fault in found]
    if faults:
        raise BadManifest(shortened(faults, "manifests"))
    return manifests


def _read(document: Document) -> tuple[Manifest | None, list[DocumentFault]]:
    """The manifest of a document, and all its faults: of those at one place, the first that was found."""
    fields = document.value
    if not isinstance(fields, dict):
        hint = "; separate several manifests by lines of ---" if isinstance(fields, list) else ""
        wrong = f"a manifest is a map, not {named(fields)}{hint}"
        return None, [*document.faults] or [document.fault((), wrong)]
    flaws = [each for each in nulls(fields, Manifest) if each[0] != ("payload",)]
    if "retry_of" in fields:
        flaws.append((("retry_of",), "is not for manifests: a job is retried by its id"))
    manifest = None
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        flaws += _flaws(error, fields)
    return manifest, faults_of(document, flaws)


def outside(manifests: Sequence[Manifest]) -> list[str]:
    """What stands in `after` of a batch for jobs that are not in it: to be resolved before it is ordered."""
    own = {manifest.ulid for manifest in manifests}
    return sorted({name for manifest in manifests for name in manifest.unresolved} - own)


def ordered(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifests of a batch, predecessors first, with its own ULIDs in `after` replaced by job ids.

    One that waits for something `outside` which is not resolved has no id yet: what comes after it keeps
    its ULID.
    """
    places: dict[str, int] = {}
    for place, manifest in enumerate(manifests):
        if manifest.ulid is not None and places.setdefault(manifest.ulid, place) != place:
            raise BadManifest([f"ulid: {manifest.ulid} is used by more than one manifest"])
    job_ids: dict[str, str] = {}
    result: list[Manifest] = []
    for place in _predecessors_first(manifests, places):
        manifest = manifests[place].with_after(job_ids)
        if manifest.ulid is not None and not manifest.unresolved:
            job_ids[manifest.ulid] = manifest.content_id
        result.append(manifest)
    return result


def _predecessors_first(manifests: Sequence[Manifest], places: Mapping[str, int]) -> Iterator[int]:
    """The places of manifests, each after those that it names; otherwise as they stand."""
    done: set[int] = set()
    for start in range(len(manifests)):
        way = {} if start in done else {start: None}  # from the first one to what it waits for, and on
        while way:
            place = next(reversed(way))
            before = (places[name] for name in manifests[place].unresolved if name in places)
            following = next((each for each in before if each not in done), None)
            if following is None:
                done.add(place)
                del way[place]
                yield place
            elif following in way:
                circle = [*way][[*way].index(following) :]
                names = " -> ".join(str(manifests[each].ulid) for each in (*circle, following))
                raise BadManifest([f"after: these wait for each other: {names}"])
            else:
                way[following] = None
