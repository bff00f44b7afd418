"""Runs of workflows: the labels of their jobs, and where the outputs of predecessors go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.ulid import derive_ulid
from vox_mesh.model.documents.documents import Path
from vox_mesh.model.jobs.manifest import Manifest

LABEL: Final = "workflow"
"""The key of the input that names the workflow, the run and the job."""

MAX_TEXT: Final = 64 * 1024
"""The maximum size in bytes of an output in an argument or a variable."""

_BIND: Final = "bind"
_PARTS: Final = "parts"
_PREFIX: Final = 23
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TEXT_FIELDS: Final = ("command", "args", "env")


def new_run_id(key: str) -> str:
    """Return the id of a new run: a ULID whose last three letters number its jobs."""
    # Keys of one process differ only in their last letters.
    return f"{derive_ulid(key, 'workflow run')[:_PREFIX]}000"


def ulids_of_run(run_id: str) -> tuple[str, str]:
    """Return the first and the last ULID of the jobs of a run."""
    return f"{run_id[:_PREFIX]}001", f"{run_id[:_PREFIX]}ZZZ"


class NewRun(NamedTuple):
    """A run to be scheduled."""

    run_id: str
    name: str
    manifests: Sequence[Manifest]


class JobLabel(NamedTuple):
    """The job of a run, by name."""

    workflow: str
    run_id: str
    job: str
    place: int
    """Its place in the workflow, from 1."""

    @property
    def ulid(self) -> str:
        """Return the ULID of the job."""
        high, low = divmod(self.place, 32 * 32), self.place % 32
        return f"{self.run_id[:_PREFIX]}{_LETTERS[high[0]]}{_LETTERS[high[1] // 32]}{_LETTERS[low]}"

    @property
    def nonce(self) -> str:
        """Return the nonce of the job: each run has jobs of its own."""
        return f"{self.job}@{self.run_id}"

    @property
    def input(self) -> dict[str, Any]:
        """Return the label as an input of the manifest."""
        return {LABEL: {"name": self.workflow, "run": self.run_id, "job": self.job}}


def name_in_workflow(core: Mapping[str, Any]) -> str | None:
    """Return the name of a job in its workflow, or `None` if it is not of one."""
    return _label_text(core, "job")


def workflow_name(core: Mapping[str, Any]) -> str | None:
    """Return the name of a job's workflow, or `None` if it is not of one."""
    return _label_text(core, "name")


def _label_text(core: Mapping[str, Any], field: str) -> str | None:
    for each in _inputs(core):
        label = each.get(LABEL)
        if isinstance(label, dict) and isinstance(label.get(field), str):
            return str(label[field])
    return None


class Binding(NamedTuple):
    """Where the outputs of predecessors go: the path of a value, and its parts in order.

    A part is a text, the value of a parameter, or a job whose output is put there.
    """

    path: Path
    parts: tuple[Any, ...]

    @property
    def input(self) -> dict[str, Any]:
        """Return the binding as an input of the manifest."""
        parts = [
            {"job": each.ulid} if isinstance(each, JobLabel) else {"text": _text(each)} for each in self.parts
        ]
        return {_BIND: list(self.path), _PARTS: parts}

    @classmethod
    def of_input(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the binding that an input describes, or `None`. Raises `BadValue` if it is damaged."""
        if _BIND not in given or _PARTS not in given:
            return None
        path, parts = given[_BIND], given[_PARTS]
        is_path = isinstance(path, list) and path and all(isinstance(each, str | int) for each in path)
        if not is_path or path[0] not in (*_TEXT_FIELDS, "payload") or not isinstance(parts, list):
            raise BadValue("a binding must have the path of an argument, a variable or a payload")
        for each in parts:
            if (
                not isinstance(each, dict)
                or len(each) != 1
                or not isinstance(each.get("job", each.get("text")), str)
            ):
                raise BadValue("a part of a binding must have either job or text")
        return cls(tuple(path), tuple(parts))

    @property
    def jobs(self) -> list[str]:
        """Return the ULIDs of the jobs whose outputs it needs."""
        return [each["job"] for each in self.parts if "job" in each]

    @property
    def pattern(self) -> str:
        """Return what is known of the value before there are outputs: all of it, or how it begins and `*`."""
        texts = [each["text"] for each in takewhile(lambda each: "text" in each, self.parts)]
        return "".join(texts) + ("" if len(texts) == len(self.parts) else "*")

    def value(self, outputs: Mapping[str, Any]) -> Any:
        """Return the value with the outputs of these jobs; a payload that is one output keeps its type."""
        values = [outputs[each["job"]] if "job" in each else each["text"] for each in self.parts]
        if self.path[0] not in _TEXT_FIELDS:
            return values[0] if len(values) == 1 else "".join(map(_text, values))
        text = "".join(map(_text, values))
        if "\0" in text:
            raise BadValue("an output with a NUL character can't be an argument or a variable")
        if (size := len(text.encode())) > MAX_TEXT:
            raise BadValue(
                f"outputs in an argument or a variable must have at most {MAX_TEXT} bytes, got {size}",
                hint="read them in the job: `vox-mesh job artifact get`",
            )
        return text


def bindings_of(core: Mapping[str, Any]) -> list[Binding]:
    """Return the bindings of a job. Raises `BadValue` if one is damaged."""
    return [each for each in map(Binding.of_input, _inputs(core)) if each is not None]


def bind(core: Mapping[str, Any], values: Mapping[Path, Any]) -> dict[str, Any]:
    """Return a copy of a core with these values at their paths. Raises `BadValue` if a path leads nowhere."""
    bound = dict(core)
    for path, value in values.items():
        _put(bound, path, value)
    return bound


def _put(target: Any, path: Path, value: Any) -> None:
    """Put a value at a path, in copies of what leads there."""
    step = path[0]
    try:
        if len(path) == 1:
            target[step]  # it must be there
            target[step] = value
            return
        inner = target[step]
        target[step] = copy = dict(inner) if isinstance(inner, dict) else list(inner)
    except (KeyError, IndexError, TypeError):
        raise BadValue("a binding names a value that the job does not have") from None
    _put(copy, path[1:], value)


def _inputs(core: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = core.get("inputs")
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else canonical(value)
