"""Manifests: descriptions of jobs. The content id of a manifest's core is the job's id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.model.base.canonical import content_id, parse
from vox_mesh.model.documents.documents import Document, DocumentFault, Lines, Path, field_text
from vox_mesh.model.documents.validation import (
    Flaw,
    Texts,
    faults_of,
    flaws_of,
    in_words,
    named,
    nulls,
    shortened,
)
from vox_mesh.model.jobs import manifest_fields
from vox_mesh.model.jobs.manifest_fields import EPOCH, MILLISECOND, After, When
from vox_mesh.model.jobs.records import COMMAND_ATTEMPTS, DEFAULT_ATTEMPTS
from vox_mesh.model.rhythm.bindings import AT_DOWNBEAT, WITH_BAR, during
from vox_mesh.model.rhythm.tempo import Until

__all__ = [
    "EXEC",
    "After",
    "Manifest",
    "When",
    "external_references",
    "handler_manifest",
    "manifests_at",
    "parse_manifests",
    "read_manifest",
    "sort_by_dependency",
]

EXEC: Final = "exec"
"""The kind of command jobs."""

_CORE_FIELDS: Final = frozenset(
    {
        *("command", "args", "timeout", "env", "env_from", "cwd", "inputs", "policy_root"),
        *("kind", "payload", "after", "nonce", "retry_of", "score", "budget", "tags"),
    }
)
_COMMAND_FIELDS: Final = ("args", "env", "env_from", "cwd")
_RULE_ERROR: Final = "rule"


class Manifest(BaseModel):
    """The description of a job: a command, or a kind with a payload for a handler.

    A field that is `None` is absent, except for the payload, which may be null.
    """

    # The validator is built on first use: most CLI commands need none.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    command: manifest_fields.Command | None = Field(
        None, description="a non-empty array of texts, the program first"
    )
    args: Texts | None = Field(None, description="an array of texts")
    timeout: manifest_fields.Timeout | None = Field(
        None, description="whole seconds up to 30 days; 0 for no limit"
    )
    env: manifest_fields.Variables | None = Field(
        None, description="a map of names to texts; names are not empty and have no ="
    )
    env_from: manifest_fields.Variables | None = Field(
        None, description="a map of names to names of secrets of the worker; not also in env"
    )
    cwd: manifest_fields.FolderPath | None = Field(
        None, description="an absolute path, or one below the worker's folder"
    )
    inputs: manifest_fields.Inputs | None = Field(None, description="an array of maps, up to 256 KiB")
    policy_root: manifest_fields.PolicyRoot | None = Field(None, description="sha256: and 64 hex digits")
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
        "{job: ..., when: success or end}, {op: ULID}; up to 10000, of them up to 256 ops",
    )
    priority: manifest_fields.Priority | None = Field(None, description="an integer from 0 to 3")
    run_at: manifest_fields.Moment | None = Field(
        None, description="a time with its offset, such as 2030-01-31T08:00:00Z"
    )
    at: manifest_fields.At | None = Field(None, description="downbeat: not before the next bar begins")
    during: manifest_fields.PhaseName | None = Field(
        None, description="the phase of a bar in which it may start, such as review"
    )
    max_attempts: manifest_fields.Attempts | None = Field(None, description="an integer from 1 to 100")
    max_interruptions: manifest_fields.Interruptions | None = Field(
        None, description="an integer from 0 to 100; 0: never run again after its worker was lost"
    )
    backoff: manifest_fields.Backoff | None = Field(None, description="a duration from 0 to 1d")
    lease: manifest_fields.Lease | None = Field(
        None, description="a duration from 1s to 1d; or phase or bar: until that ends"
    )
    score: manifest_fields.Score | None = None  # validated by its own model
    budget: manifest_fields.Budget | None = None
    tags: manifest_fields.Tags | None = Field(
        None,
        description="what its claimant must have: up to 16 words of a-z, 0-9, _, ., : and -, such as gpu",
    )
    nonce: manifest_fields.Nonce | None = Field(None, description="a text of 1 to 128 characters")
    retry_of: manifest_fields.JobId | None = Field(None, description="a job id")

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        for _ in _misfits(self._given()):
            raise PydanticCustomError(_RULE_ERROR, "the fields do not fit each other")
        return self

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Create a manifest. Raises `BadManifest` with all its faults."""
        return cls._of(fields)

    @classmethod
    def of_core(cls, core: Mapping[str, Any]) -> Self:
        """Return the manifest of a stored core. Raises `BadManifest` if it is not one."""
        try:
            plain = parse(orjson.dumps(core))  # large numbers become floats again
        except (orjson.JSONEncodeError, BadValue) as error:
            raise BadManifest([f"this core is no JSON: {error}"]) from None
        manifest = cls._of(plain, manifest_fields.STORED)
        if manifest.core() != plain:
            raise BadManifest(["this is no core of a manifest: there is more or less in it"])
        return manifest

    @classmethod
    def _of(cls, fields: dict[str, Any], context: str | None = None) -> Self:
        try:
            return cls.model_validate(fields, context=context)
        except ValidationError as error:
            raise BadManifest(in_words(_flaws(error, fields))) from None

    def _given(self) -> dict[str, Any]:
        fields = self.__dict__
        return {
            name: fields[name]
            for name in self.__pydantic_fields_set__
            if fields[name] is not None or name == "payload"
        }

    def document(self) -> dict[str, Any]:
        """Return it as a document in JSON, which describes the same manifest."""
        return {name: _in_json(value) for name, value in self._given().items()}

    def core(self) -> dict[str, Any]:
        """Return the fields that identify the job and are hashed. Empty `after` and `tags` count as absent.

        A lease in time is not part of the core; a lease until the end of a phase or bar is.
        """
        fields = self.__dict__
        core = {
            name: fields[name]
            for name in self.__pydantic_fields_set__ & _CORE_FIELDS
            if fields[name] is not None or name == "payload"
        }
        if self.command is not None:
            core.pop("kind", None)
            core["command"] = list(self.command)
            core["args"] = list(self.args or ())
        if self.inputs is not None:
            core["inputs"] = list(self.inputs)
        if isinstance(self.lease, Until):
            core["lease"] = self.lease.value
        if tags := core.pop("tags", None):
            core["tags"] = list(tags)
        if after := core.pop("after", None):
            core["after"] = [each.core for each in after]
        return core

    @property
    def content_id(self) -> str:
        """Return the job id. Raises `BadManifest` while a reference in `after` is unresolved."""
        return content_id(self.resolved_core())

    def resolved_core(self) -> dict[str, Any]:
        """Return the core. Raises `BadManifest` while a reference in `after` is unresolved."""
        if self.after and self.unresolved:
            raise BadManifest([f"after: {self.unresolved[0]} is not resolved to a job id"])
        return self.core()

    @property
    def job_kind(self) -> str:
        """Return the kind of the job."""
        return self.kind or EXEC

    @property
    def attempts(self) -> int:
        """Return the maximum number of failed attempts."""
        return self.max_attempts or (DEFAULT_ATTEMPTS if self.command is None else COMMAND_ATTEMPTS)

    @property
    def unresolved(self) -> list[str]:
        """Return the references in `after` that are not job ids yet."""
        return [each.job for each in self.after or () if each.job is not None and not each.is_resolved]

    def with_after(self, job_ids: Mapping[str, str]) -> Self:
        """Return a copy in which references in `after` are replaced by `job_ids`, where it has them."""
        if not any(name in job_ids for name in self.unresolved):
            return self
        after = [each._replace(job=job_ids.get(each.job or "", each.job)) for each in self.after or ()]
        if len({each[:2] for each in after}) < len(after):
            return self._of({**self._given(), "after": after})  # which names the one that is there twice
        return self.model_copy(update={"after": tuple(after)})

    @property
    def timeout_ms(self) -> int | None:
        """Return the timeout of an attempt in ms; 0 for no limit."""
        return None if self.timeout is None else self.timeout * 1_000

    @property
    def run_at_ms(self) -> int | None:
        """Return the earliest start as ms since 1970."""
        return None if self.run_at is None else (self.run_at - EPOCH) // MILLISECOND

    @property
    def binding(self) -> str | None:
        """Return what of the rhythm the job waits for; a job with a score begins with a bar by default."""
        if self.during is not None:
            return during(self.during)
        if self.score is not None and self.score.get("start", AT_DOWNBEAT) == AT_DOWNBEAT:
            return WITH_BAR
        return None if self.at is None else AT_DOWNBEAT

    @property
    def backoff_ms(self) -> int | None:
        """Return the base delay after a failed attempt, in ms."""
        return None if self.backoff is None else self.backoff // MILLISECOND

    @property
    def lease_ms(self) -> int | None:
        """Return the lease of a claim in ms, or `None` if it is not given in time."""
        return self.lease // MILLISECOND if isinstance(self.lease, timedelta) else None


def handler_manifest(kind: str, payload: Any, **fields: Any) -> Manifest:
    """Create the manifest of a job for a handler."""
    return Manifest.of(kind=kind, payload=payload, **fields)


def _in_json(value: Any) -> Any:
    match value:
        case After():
            return value.core
        case timedelta():
            return f"{value // timedelta(milliseconds=1)}ms"
        case datetime():
            return value.isoformat()
        case tuple():
            return [_in_json(each) for each in value]
    return value


def _names(value: object) -> set[str]:
    """Return the names in a mapping or a list; what is neither is a flaw of its own."""
    return {each for each in value if isinstance(each, str)} if isinstance(value, dict | list) else set()


def _misfits(given: Mapping[str, Any]) -> Iterator[Flaw]:
    """Yield the contradictions between fields."""
    if "during" in given and "at" in given:
        yield ("at",), "can't be combined with during; leave one of them out"
    if (
        "during" in given
        and isinstance(score := given.get("score"), dict)
        and score.get("start") == AT_DOWNBEAT
    ):
        yield ("during",), "can't be combined with a score that starts on the downbeat; write start: now"
    if "command" in given:
        if "timeout" not in given:
            yield ("timeout",), "is missing: a command needs one, 0 for no limit"
        for name in sorted(_names(given.get("env")) & _names(given.get("env_from"))):
            yield ("env_from", name), "is also in env; leave one of them out"
        if given.get("kind", EXEC) != EXEC:
            yield ("kind",), f"a job with a command is of kind {EXEC}; leave this out"
        if "payload" in given:
            yield ("payload",), "is for handlers; a command has args, env and inputs"
        return
    if "kind" not in given:
        yield (), "there must be a command, or a kind that a handler knows"
    elif given["kind"] == EXEC:
        yield ("kind",), f"{EXEC} is the kind of jobs with a command, and there is none"
    for name in _COMMAND_FIELDS:
        if name in given:
            yield (name,), "is of use only with a command"
    if "payload" in given and "kind" not in given:
        yield ("payload",), "is of use only with a kind"


def _flaws(error: ValidationError, fields: Mapping[str, Any]) -> list[Flaw]:
    """Return the flaws of the fields, each with the allowed values."""
    errors = [each for each in error.errors(include_url=False) if each["type"] != _RULE_ERROR]
    given = {name: value for name, value in fields.items() if value is not None or name == "payload"}
    return [*flaws_of(errors, Manifest, "a manifest"), *_misfits(given)]


# --- files and batches ---------------------------------------------------------------------------


def parse_manifests(text: str | bytes, name: str = "manifest") -> list[Manifest]:
    """Parse manifests from YAML or JSON. Raises `BadManifest` with all faults and their lines."""
    from vox_mesh.model.documents.yaml_reader import read_documents  # imported late: loads a parser

    manifests: list[Manifest] = []
    faults: list[DocumentFault] = []
    documents = read_documents(text, name)
    for document in documents:
        manifest, found = read_manifest(document)
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
    """Create manifests from values. Raises `BadManifest` with all faults and their paths."""
    manifests: list[Manifest] = []
    faults: list[str] = []
    for place, value in values.items():
        manifest, found = read_manifest(Document("", value, (), Lines(1)))
        if manifest is not None:
            manifests.append(manifest)
        faults += [f"{field_text((*place, *fault.path))}: {fault.wrong}" for fault in found]
    if faults:
        raise BadManifest(shortened(faults, "manifests"))
    return manifests


def read_manifest(document: Document) -> tuple[Manifest | None, list[DocumentFault]]:
    """Return the manifest of a document, and its faults, at most one per field."""
    fields = document.value
    if not isinstance(fields, dict):
        hint = "; separate several manifests by lines of ---" if isinstance(fields, list) else ""
        message = f"a manifest is a map, not {named(fields)}{hint}"
        return None, [*document.faults] or [document.fault((), message)]
    flaws = [each for each in nulls(fields, Manifest) if each[0] != ("payload",)]
    if "retry_of" in fields:
        flaws.append((("retry_of",), "is not for manifests: a job is retried by its id"))
    manifest = None
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        flaws += _flaws(error, fields)
    return manifest, faults_of(document, flaws)


def external_references(manifests: Sequence[Manifest]) -> list[str]:
    """Return the references in `after` to jobs that are not in the batch; resolve them before sorting."""
    own = {manifest.ulid for manifest in manifests}
    return sorted({name for manifest in manifests for name in manifest.unresolved} - own)


def sort_by_dependency(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield the manifests of a batch, predecessors first, with the batch's ULIDs in `after` replaced by ids.

    A manifest with an unresolved external reference has no id yet: its successors keep its ULID.
    Raises `BadManifest` if manifests wait for each other or share a ULID.
    """
    places: dict[str, int] = {}
    for place, manifest in enumerate(manifests):
        if manifest.ulid is not None and places.setdefault(manifest.ulid, place) != place:
            raise BadManifest([f"ulid: {manifest.ulid} is used by more than one manifest"])
    return _resolve_in_order(manifests, places)


def _resolve_in_order(manifests: Sequence[Manifest], places: Mapping[str, int]) -> Iterator[Manifest]:
    job_ids: dict[str, str] = {}
    for place in _predecessors_first(manifests, places):
        manifest = manifests[place].with_after(job_ids)
        if manifest.ulid is not None and not manifest.unresolved:
            job_ids[manifest.ulid] = manifest.content_id
        yield manifest


def _predecessors_first(manifests: Sequence[Manifest], places: Mapping[str, int]) -> Iterator[int]:
    """Yield the indexes of manifests, predecessors first and otherwise in the given order."""

    def before(place: int) -> Iterator[int]:
        return (places[name] for name in manifests[place].unresolved if name in places)

    done: set[int] = set()
    for start in range(len(manifests)):
        # From a manifest to its predecessors, each with the ones that were not looked at yet.
        path = {} if start in done else {start: before(start)}
        while path:
            place = next(reversed(path))
            following = next((each for each in path[place] if each not in done), None)
            if following is None:
                done.add(place)
                del path[place]
                yield place
            elif following in path:
                cycle = [*path][[*path].index(following) :]
                names = " -> ".join(str(manifests[each].ulid) for each in (*cycle, following))
                raise BadManifest([f"after: these wait for each other: {names}"])
            else:
                path[following] = before(following)
