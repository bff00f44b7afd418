"""Django: a task backend whose tasks are jobs of the mesh, and the app with which a worker runs them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vox_mesh.app import MeshApp
from vox_mesh.errors import BadSettings, BadValue, NotKnown
from vox_mesh.jobs.typed.job_options import manifest_fields
from vox_mesh.jobs.typed.running_job import running, running_job
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.jobs.records import Job
from vox_mesh.settings import load_settings
from vox_mesh.settings.discovery import no_mesh
from vox_mesh.sync import Mesh as SyncMesh

try:
    import django
    from django.conf import settings as django_settings
    from django.db import close_old_connections
    from django.utils import timezone
    from django.utils.module_loading import import_string
except ModuleNotFoundError as missing:
    raise BadSettings("Django is not installed", hint="pip install 'vox-mesh[django]'") from missing

_PACKAGE: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"
"""Django's own tasks, or before Django 6 the package that has them."""

if TYPE_CHECKING:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
else:
    try:
        _base = import_module(f"{_PACKAGE}.base")
    except ModuleNotFoundError as missing:
        raise BadSettings(
            "this Django has no tasks", hint="install Django 6, or pip install 'vox-mesh[django]'"
        ) from missing
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    BaseTaskBackend = import_module(f"{_PACKAGE}.backends.base").BaseTaskBackend
    TaskResultDoesNotExist = import_module(f"{_PACKAGE}.exceptions").TaskResultDoesNotExist
    signals = import_module(f"{_PACKAGE}.signals")

T = TypeVar("T")

_KIND: Final = "django."
"""The kinds of jobs begin with it; the name of a queue follows."""

_FAILED: Final = re.compile(r"TaskFailed: ([\w.<>]+):")
_OTHER_FAILURE: Final = "vox_mesh.errors.JobNotSucceeded"
_READY: Final[Any] = TaskResultStatus.READY
_RUNNING: Final[Any] = TaskResultStatus.RUNNING
_STATES: Final[Mapping[str, Any]] = {
    "pending": _READY,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "aborted": TaskResultStatus.FAILED,
}
_URGENT: Final = 50


class TaskFailed(Exception):
    """A task has raised an exception, which it names."""


class MeshTaskBackend(BaseTaskBackend):
    """Enqueues tasks as jobs of the mesh: `BACKEND` of `TASKS` in the settings of a project.

    `OPTIONS` may have `job`, the options of the jobs, such as `{"retries": 3}`, and `mesh`, settings that
    take the place of variables of the environment.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task[Any, T], args: Any, kwargs: Any) -> TaskResult[T]:
        """Schedule the job of a task. It is durable on return."""
        self.validate_task(task)
        result: TaskResult[T] = TaskResult(
            task=task,
            id="",
            status=_READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        payload = {
            "task": task.module_path,
            "backend": self.alias,
            "args": result.args,
            "kwargs": result.kwargs,
        }
        options = {**manifest_fields(self._job_options, 0), "priority": _priority_of(task.priority)}
        if task.run_after is not None:
            options["run_at"] = _aware(task.run_after)
        scheduled = self._call(lambda jobs: jobs.schedule(_KIND + task.queue_name, payload, **options))
        object.__setattr__(result, "id", scheduled.job_id)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return the present state of a task. Raises `TaskResultDoesNotExist` if there is none."""
        try:
            job = self._call(lambda jobs: jobs.find(result_id))
        except (NotKnown, BadValue):
            raise TaskResultDoesNotExist(result_id) from None
        if not job.kind.startswith(_KIND):
            raise TaskResultDoesNotExist(result_id)
        try:
            result = _result_of(job)
        except GiveUp as error:
            raise TaskResultDoesNotExist(str(error)) from error
        if result.status == TaskResultStatus.SUCCESSFUL:
            value = self._call(lambda jobs: jobs.result_of(job))
            object.__setattr__(result, "_return_value", value)
        return result

    @property
    def _job_options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = {"retries": 0, **self.options.get("job", {})}
        return options

    def _call(self, call: Callable[[Any], Any]) -> Any:
        """Call the jobs of the mesh: within a task, of the one in which it runs."""
        if (context := running_job()) is not None:
            return context.run(call(context.jobs))
        return call(_meshes.of(self.options.get("mesh", {})).jobs)


def _priority_of(priority: int) -> int:
    """Return which of the four priorities of jobs a priority from -100 to 100 stands for."""
    return 0 if priority < 0 else 1 if priority == 0 else 2 if priority <= _URGENT else 3


def _aware(moment: datetime) -> datetime:
    aware: datetime = moment if timezone.is_aware(moment) else timezone.make_aware(moment)
    return aware


def _moment(at_ms: int | None) -> datetime | None:
    """Return a time of the mesh as Django has times: with a time zone if `USE_TZ` says so."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment if django_settings.USE_TZ else timezone.make_naive(moment)


def _task_of(path: Any) -> Task[Any, Any]:
    """Return the declared task of this path: nothing else is ever called."""
    found = import_string(path) if isinstance(path, str) else path
    if not isinstance(found, Task):
        raise TypeError("that is no task")
    return found


def _result_of(job: Job) -> TaskResult[Any]:
    """Return the task of a job. Raises `GiveUp` if its payload is not that of one."""
    status = _STATES.get(job.state, _RUNNING)
    try:
        payload = job.core["payload"]
        backend, args, kwargs = str(payload["backend"]), list(payload["args"]), dict(payload["kwargs"])
        task = _task_of(payload["task"]).using(queue_name=job.kind.removeprefix(_KIND), backend=backend)
    except Exception as error:  # the import of a module may raise anything
        raise GiveUp(f"the payload of job {job.job_id} names no task: {error}") from error
    return TaskResult(
        task=task,
        id=job.job_id,
        status=status,
        enqueued_at=_moment(job.created_ms),
        started_at=_moment(job.started_ms),
        finished_at=_moment(job.ended_ms),
        last_attempted_at=_moment(job.started_ms),
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=_errors_of(job) if status == TaskResultStatus.FAILED else [],
        worker_ids=[job.claimer or ""] * job.attempts,
    )


def _errors_of(job: Job) -> list[TaskError]:
    reason = job.reason or job.state
    found = _FAILED.match(reason)
    return [
        TaskError(
            exception_class_path=_OTHER_FAILURE if found is None else found[1].rstrip("."), traceback=reason
        )
    ]


# --- the worker ------------------------------------------------------------------------------------------


def run_task(context: JobContext) -> Any:
    """Run the task of a job, in a thread."""
    result = _result_of(context.job)
    object.__setattr__(result, "status", _RUNNING)
    task, backend = result.task, type(result.task.get_backend())
    arguments: Sequence[Any] = (TaskContext(task_result=result),) if task.takes_context else ()
    signals.task_started.send(sender=backend, task_result=result)
    close_old_connections()
    try:
        with running(context):
            value = _normalized(task.call(*arguments, *result.args, **result.kwargs))
    except Exception as error:
        context.log("".join(format_exception(error)))
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        raise TaskFailed(f"{type(error).__module__}.{type(error).__qualname__}: {error}") from error
    else:
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "_return_value", value)
    finally:
        object.__setattr__(result, "finished_at", timezone.now())
        signals.task_finished.send(sender=backend, task_result=result)
        close_old_connections()
    return value


def _normalized(value: Any) -> Any:
    module = "django.utils.json" if _PACKAGE == "django.tasks" else "django_tasks.utils"
    return import_module(module).normalize_json(value)


@cache
def _app() -> MeshApp:
    """Return the app of this Django project, named by DJANGO_SETTINGS_MODULE."""
    django.setup()
    app = MeshApp()
    app.handlers.handles(f"{_KIND}*")(run_task)
    return app


def __getattr__(name: str) -> Any:
    """Return `app`, for `vox-mesh worker run --app vox_mesh.integrations.django:app`."""
    if name == "app":
        return _app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- the mesh of a process -------------------------------------------------------------------------------


class ProcessMeshes:
    """The meshes that this process has opened, one for each choice of settings. A fork opens its own."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()

    def of(self, overrides: Mapping[str, Any]) -> Any:
        """Return the mesh that these settings choose. It stays open: opening one takes milliseconds."""
        key = repr(sorted(overrides.items(), key=lambda each: each[0]))
        with self._lock:
            if key not in self._open:
                settings = load_settings(**overrides)
                if settings.backend is Backend.MEMORY:  # no worker would see a task
                    raise no_mesh("enqueue")
                self._open[key] = self._stack.enter_context(SyncMesh.open_command(settings))
            return self._open[key]

    def close(self) -> None:
        """Close all of them; the next call opens them again."""
        with self._lock:
            self._open = {}
            self._stack.close()


_meshes: Final = ProcessMeshes()


def close_meshes() -> None:
    """Close what this process has opened, such as at the end of a test."""
    _meshes.close()
