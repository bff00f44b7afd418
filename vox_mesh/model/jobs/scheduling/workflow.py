"""Workflow files: named jobs that refer to each other, parameters, and the outputs of predecessors.

A reference is replaced by data, as one value: nothing of it is parsed again. Parameters are known when a run
begins. Outputs are not: the manifest of a job says where they go (`Binding`), and its worker puts them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, BadWorkflow
from vox_mesh.model.documents.documents import Document, DocumentFault, Lines, Path
from vox_mesh.model.documents.validation import named, shortened, shown
from vox_mesh.model.jobs.code_arguments import code_places
from vox_mesh.model.jobs.manifest import Manifest, When, read_manifest
from vox_mesh.model.jobs.scheduling.workflow_run import Binding, JobLabel, NewRun

MAX_JOBS: Final = 500

_FIELDS: Final = ("name", "params", "jobs")
_OWN_FIELDS: Final = ("ulid", "nonce", "retry_of")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_REFERENCE: Final = re.compile(r"\$\{\{([^{}\n]*)\}\}")  # linear in the length of any text
_PARAM: Final = re.compile(r"params\.([A-Za-z][A-Za-z0-9_-]*)")
_OUTPUT: Final = re.compile(r"jobs\.([A-Za-z][A-Za-z0-9_-]*)\.output")
_TIMEOUT: Final = "1h"

Params = Mapping[str, Any]


def parse_workflow(
    text: str | bytes, name: str, params: Mapping[str, str], run_id: str, folder: str | None
) -> NewRun:
    """Return a run of the workflow in a text, with the manifests of its jobs.

    Commands without `cwd` run in `folder`. Raises `BadWorkflow` with all faults and their lines, and
    `BadValue` for parameters that the workflow does not have, or that are missing.
    """
    from vox_mesh.model.documents.yaml_reader import read_documents  # imported late: loads a parser

    documents = read_documents(text, name)
    if not documents:
        raise BadWorkflow([str(DocumentFault(name, 1, (), "there is no workflow in it"))])
    if len(documents) > 1:
        raise BadWorkflow([str(documents[1].fault((), "there is more than one workflow in it"))])
    return _build(documents[0], name.rpartition("/")[2].partition(".")[0] or name, params, run_id, folder)


def workflow_of(value: Any, params: Mapping[str, str], run_id: str, folder: str | None = None) -> NewRun:
    """Return a run of a workflow that is given as a value. Raises as `parse_workflow` does."""
    return _build(Document("workflow", value, (), Lines(1)), "workflow", params, run_id, folder)


def _build(
    document: Document, name: str, given: Mapping[str, str], run_id: str, folder: str | None
) -> NewRun:
    faults = list(document.faults)
    reader = _Reader(document, run_id, folder)
    value = document.value
    if not isinstance(value, dict):
        faults.append(document.fault((), f"a workflow is a map, not {named(value)}"))
        raise _bad(document, faults)
    faults += [
        document.fault((each,), f"is not known; allowed: {', '.join(_FIELDS)}")
        for each in value
        if each not in _FIELDS
    ]
    title = value.get("name", name)
    if not isinstance(title, str) or not 0 < len(title) <= 128 or not title.isprintable():
        faults.append(document.fault(("name",), "must be 1 to 128 printable characters"))
    params = reader.read_params(given)
    manifests = reader.read_jobs(str(title), params)
    faults += reader.faults
    if faults:
        raise _bad(document, faults)
    return NewRun(run_id, str(title), manifests)


def _bad(document: Document, faults: Sequence[DocumentFault]) -> BadWorkflow:
    first: dict[Path, DocumentFault] = {}
    for each in faults:
        first.setdefault(each.path, each)
    texts = [str(each) for each in sorted(first.values(), key=lambda fault: fault.line)]
    return BadWorkflow(shortened(texts, document.name))


class _Place(NamedTuple):
    """A text in a job, and which references are allowed there."""

    job: str
    path: Path
    is_code: bool = False

    @property
    def takes_outputs(self) -> bool:
        first = self.path[0]
        return first in ("args", "env", "payload") or (first == "command" and self.path[1:] != (0,))

    @property
    def is_text(self) -> bool:
        """Whether a value there must be text."""
        return self.path[0] in ("command", "args", "env", "cwd")


class _Reader:
    """Reads the parts of a workflow, and collects their faults."""

    def __init__(self, document: Document, run_id: str, folder: str | None) -> None:
        self._document = document
        self._run_id = run_id
        self._folder = folder
        self._value: dict[str, Any] = document.value if isinstance(document.value, dict) else {}
        self._awaited: dict[str, dict[str, When]] = {}
        self.faults: list[DocumentFault] = []

    def _add(self, path: Path, wrong: str) -> None:
        self.faults.append(self._document.fault(path, wrong))

    # --- parameters ------------------------------------------------------------------------------

    def read_params(self, given: Mapping[str, str]) -> Params:
        """Return the values of the parameters: the given ones, or the defaults."""
        declared = self._value.get("params") or {}
        if not isinstance(declared, dict):
            self._add(("params",), f"must be a map of names to defaults, not {named(declared)}")
            return {}
        for name, default in declared.items():
            if not _NAME.fullmatch(name):
                self._add(("params", name), "must be a name of letters, digits, _ and -")
            if not isinstance(default, str | int | float | None):
                self._add(("params", name), f"must have text, a number or nothing, not {named(default)}")
        for name in given:
            if name not in declared:
                known = ", ".join(declared) or "it has none"
                raise BadValue(
                    f"there is no parameter {name!r}", hint=f"parameters of this workflow: {known}"
                )
        missing = [name for name, default in declared.items() if default is None and name not in given]
        if missing:
            raise BadValue(
                f"parameter {missing[0]!r} has no default and is not given",
                hint=f"pass --param {missing[0]}=VALUE",
            )
        return {
            name: _typed(name, given[name], default) if name in given else default
            for name, default in declared.items()
        }

    # --- jobs ------------------------------------------------------------------------------------

    def read_jobs(self, title: str, params: Params) -> list[Manifest]:
        """Return the manifests of the jobs, in the order of the file."""
        jobs = self._value.get("jobs")
        if not isinstance(jobs, dict) or not jobs:
            self._add(("jobs",), "must be a map of names to jobs")
            return []
        if len(jobs) > MAX_JOBS:
            self._add(("jobs",), f"has {len(jobs)} jobs; at most {MAX_JOBS} fit")
            return []
        labels = {name: JobLabel(title, self._run_id, name, place) for place, name in enumerate(jobs, 1)}
        for name, fields in jobs.items():
            if not _NAME.fullmatch(name):
                self._add(("jobs", name), "must be a name of letters, digits, _ and -")
            if not isinstance(fields, dict):
                self._add(("jobs", name), f"a job is a map, not {named(fields)}")
            self._awaited[name] = self._read_after(name, fields, jobs)
        self._refuse_cycles()
        read = (
            self._read_job(labels, each, jobs[each], params) for each in jobs if isinstance(jobs[each], dict)
        )
        return [each for each in read if each is not None]

    def _read_after(self, name: str, fields: Any, jobs: Mapping[str, Any]) -> dict[str, When]:
        after = fields.get("after", []) if isinstance(fields, dict) else []
        path: Path = ("jobs", name, "after")
        if not isinstance(after, list):
            self._add(path, f"must be an array of names of jobs, not {named(after)}")
            return {}
        awaited: dict[str, When] = {}
        for place, each in enumerate(after):
            other, when = (
                (each.get("job"), each.get("when", When.SUCCESS))
                if isinstance(each, dict)
                else (each, "success")
            )
            if not isinstance(other, str) or other not in jobs:
                known = ", ".join(list(jobs)[:10])
                self._add((*path, place), f"there is no job {shown(other)} in this workflow; it has {known}")
            elif when not in tuple(When):
                self._add((*path, place), f"{shown(when)} is neither success nor end")
            else:
                awaited[other] = When(when)
        return awaited

    def _refuse_cycles(self) -> None:
        done: set[str] = set()
        for start in self._awaited:
            path = [] if start in done else [start]
            while path:
                following = next((each for each in self._awaited[path[-1]] if each not in done), None)
                if following is None:
                    done.add(path.pop())
                elif following in path:
                    cycle = [*path[path.index(following) :], following]
                    self._add(
                        ("jobs", following, "after"), f"these wait for each other: {' -> '.join(cycle)}"
                    )
                    done.update(path)
                    path = []
                else:
                    path.append(following)

    def _read_job(
        self, labels: Mapping[str, JobLabel], name: str, fields: dict[str, Any], params: Params
    ) -> Manifest | None:
        for each in _OWN_FIELDS:
            if each in fields:
                self._add(("jobs", name, each), "is set by the workflow; leave it out")
        bindings: list[Binding] = []
        code = _code_places(fields)
        own = {
            each: self._replace(_Place(name, (each,)), value, labels, params, bindings, code)
            for each, value in fields.items()
            if each not in ("after", *_OWN_FIELDS)
        }
        label = labels[name]
        own["ulid"], own["nonce"] = label.ulid, label.nonce
        if awaited := self._awaited[name]:
            own["after"] = [{"job": labels[each].ulid, "when": when.value} for each, when in awaited.items()]
        if "command" in own:
            own.setdefault("timeout", _TIMEOUT)
            if self._folder is not None:
                own.setdefault("cwd", self._folder)
        more = own.get("inputs", [])
        if isinstance(more, list):
            own["inputs"] = [label.input, *(each.input for each in bindings), *more]
        manifest, faults = read_manifest(Document("", own, (), Lines(1)))
        for fault in faults:
            self._add(("jobs", name, *fault.path), fault.wrong)
        return manifest

    # --- references ------------------------------------------------------------------------------

    def _replace(
        self,
        place: _Place,
        value: Any,
        labels: Mapping[str, JobLabel],
        params: Params,
        bindings: list[Binding],
        code: frozenset[Path],
    ) -> Any:
        """Return the value with its parameters, and add a binding for each text with outputs."""
        if isinstance(value, dict):
            for name in value:
                if isinstance(name, str) and _REFERENCE.search(name):
                    self._add(("jobs", place.job, *place.path), "a name can't have a reference")
            items: Iterator[tuple[Any, Any]] = iter(value.items())
            return {
                key: self._replace(
                    place._replace(path=(*place.path, key)), each, labels, params, bindings, code
                )
                for key, each in items
            }
        if isinstance(value, list):
            return [
                self._replace(place._replace(path=(*place.path, key)), each, labels, params, bindings, code)
                for key, each in enumerate(value)
            ]
        if not isinstance(value, str) or not _REFERENCE.search(value):
            return value
        at: Path = ("jobs", place.job, *place.path)
        if place.path in code:
            self._add(at, 'a reference is not put into code: pass it in env, and use "$NAME" there')
            return value
        parts = [*self._parts(place, value, labels, params)]
        if any(isinstance(each, JobLabel) for each in parts):
            bindings.append(Binding(place.path, tuple(parts)))
            return value
        if len(parts) == 1 and not place.is_text:
            return parts[0]
        return "".join(map(_as_text, parts))

    def _parts(
        self, place: _Place, text: str, labels: Mapping[str, JobLabel], params: Params
    ) -> Iterator[Any]:
        """Yield the pieces of a text: literal ones, values of parameters, and jobs for their outputs."""
        at: Path = ("jobs", place.job, *place.path)
        for index, written in enumerate(_REFERENCE.split(text)):
            piece = written.strip()
            if index % 2 == 0:
                if written:
                    yield written
            elif found := _PARAM.fullmatch(piece):
                if found[1] not in params:
                    self._add(at, f"there is no parameter {found[1]!r}")
                yield params.get(found[1])
            elif found := _OUTPUT.fullmatch(piece):
                if fault := self._output_fault(place, found[1]):
                    self._add(at, fault)
                else:
                    yield labels[found[1]]
            else:
                self._add(at, f"{shown(piece)} is not known; allowed: params.NAME and jobs.NAME.output")

    def _output_fault(self, place: _Place, name: str) -> str | None:
        if name not in self._awaited:
            return f"there is no job {name!r} in this workflow"
        if self._awaited[place.job].get(name) is not When.SUCCESS:
            return f"the output of {name} is used, so {name} must be in after, and succeed"
        if not place.takes_outputs:
            return "an output can be in args, env and payload, and in command after the program"
        return None


def _typed(name: str, text: str, default: Any) -> Any:
    """Return a given parameter in the type of its default."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise BadValue(f"parameter {name!r} must be true or false, got {text!r}")
        return text == "true"
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise BadValue(f"parameter {name!r} must be a number, got {text!r}") from None
    return text


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _code_places(fields: Mapping[str, Any]) -> frozenset[Path]:
    """Return the arguments that an interpreter runs as code."""
    words: list[tuple[Path, str]] = []
    for name in ("command", "args"):
        given = fields.get(name)
        if isinstance(given, list):
            words += [((name, place), each) for place, each in enumerate(given) if isinstance(each, str)]
    return frozenset(words[place][0] for place in code_places([word for _, word in words]))
