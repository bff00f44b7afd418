"""The tasks of a Django project."""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vox_mesh.integrations.django import close_meshes

if TYPE_CHECKING:
    from django_tasks import TaskContext, signals, task, task_backends
    from django_tasks.exceptions import TaskResultDoesNotExist
else:
    _PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
    _tasks, signals = import_module(_PACKAGE), import_module(f"{_PACKAGE}.signals")
    task, task_backends, TaskContext = _tasks.task, _tasks.task_backends, _tasks.TaskContext
    TaskResultDoesNotExist = import_module(f"{_PACKAGE}.exceptions").TaskResultDoesNotExist

__all__ = ["TaskResultDoesNotExist", "close_meshes", "events", "task_backends"]

events: list[tuple[str, str, str]] = []
"""What was signalled: the signal, the name of the task, and its state."""


def _note(name: str) -> Any:
    def note(sender: Any, task_result: Any, **_: Any) -> None:
        events.append((name, task_result.task.name, task_result.status.value))

    return note


_RECEIVERS = {name: _note(name) for name in ("task_enqueued", "task_started", "task_finished")}
for _name, _receiver in _RECEIVERS.items():
    getattr(signals, _name).connect(_receiver)


@task()
def add(one: int, other: int) -> int:
    """Add numbers."""
    return one + other


@task(queue_name="mail", priority=80)
async def send(to: str) -> list[str]:
    """Send a letter, without blocking."""
    return [to, threading.current_thread().name]


@task(backend="stubborn", takes_context=True)
def third_time(context: TaskContext) -> int:
    """Fail twice."""
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@task()
def fail(reason: str) -> None:
    """Fail."""
    raise LookupError(reason)


@task()
def chain(number: int) -> str:
    """Enqueue another task."""
    return str(add.enqueue(number, 1).id)


@task(backend="elsewhere")
def nowhere() -> None:
    """Never run: its backend has no mesh."""


def no_task() -> None:
    """Do what no job may ask for."""
    raise AssertionError("called")
