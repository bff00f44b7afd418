"""Whatever is sent to the running server, it answers as its own document says."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from itertools import cycle
from typing import Any, Final

import pytest
import requests
import schemathesis
from schemathesis import BaseSchema
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from tests.support.messages.relaying import PATIENCE_S, TOKEN
from tests.support.nodes.api_scene import fill
from tests.support.nodes.serving import serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import SOAK, a_third
from tools.homes import FILE
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.openapi import ALWAYS, WITH_BODY, document_of
from vox_mesh.http.api.operations import Operation
from vox_mesh.store import new_key

_EXAMPLES: Final = 100 if SOAK else 2
_SEED: Final = 8
_WAITS: Final = ("timeout", "wait")
_REFUSED: Final = [str(status.value) for status in (*ALWAYS, *WITH_BODY)]
_OF_SHAPE: Final = ("bad_path", "bad_query", "bad_body")
"""The error for something that the document does not allow."""

_RULED: Final = ("abort_jobs", "retry_jobs", "change_kind", "keep_artifact")
"""Where one field rules out another, or a value, which the document does not say."""

_config = SchemathesisConfig.from_dict(
    {
        "seed": _SEED,
        "generation": {
            "max-examples": _EXAMPLES,
            "no-shrink": True,
            "database": "none",
            "deterministic": True,
            "with-security-parameters": False,  # the client has the token
        },
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ["2xx", *_REFUSED]},
            "ignored_auth": {"enabled": SOAK},  # it asks everything three times
        },
    }
)


@cache
def _schema() -> BaseSchema:
    load_all_checks()
    return schemathesis.openapi.from_dict(document_of(OPERATIONS), config=_config)


class _Faults(logging.Handler):
    """Keeps what is logged of faults of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._document: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._document.append(logging.Formatter().format(record))

    def taken(self) -> list[str]:
        """What was logged since this was asked last."""
        document, self._document = self._document, []
        return document


@dataclass
class Running:
    """A server, next to the test."""

    url: str
    names: dict[str, str]
    turns: Iterator[bool] = field(default_factory=lambda: cycle((True, False)))
    session: requests.Session = field(default_factory=requests.Session)
    faults: _Faults = field(default_factory=_Faults)


@contextmanager
def _beside(shared_mesh: SharedMesh) -> Iterator[Running]:
    begun: Future[Running] = Future()
    loop = asyncio.new_event_loop()
    enough = asyncio.Event()

    async def serve() -> None:
        async with serving_api(shared_mesh) as served:
            begun.set_result(Running(str(served.client.base_url), await fill(served.node)))
            await enough.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield begun.result(PATIENCE_S)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(enough.set)
        thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with something of everything, in a thread of its own."""
    with _beside(SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())) as running:
        running.session.trust_env = False
        logging.getLogger().addHandler(running.faults)
        yield running
        logging.getLogger().removeHandler(running.faults)
        running.session.close()


def named(case: Any, names: dict[str, str]) -> None:
    """Have what is asked about be there, where the name of anything would do."""
    if case.path_parameters and _is_allowed(case):
        case.path_parameters.update({name: names[name] for name in case.path_parameters})


def hurried(case: Any) -> None:
    """Have no one wait for what does not come."""
    if not _is_allowed(case):
        return
    for name in _WAITS:
        if any(each.name == name for each in case.operation.query):
            case.query[name] = "1ms"
        elif isinstance(case.body, dict) and name in case.body:
            case.body[name] = "1ms"


def _is_allowed(case: Any) -> bool:
    return bool(case.meta.generation.mode.is_positive)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the node draws its pauses meanwhile
@pytest.mark.parametrize("operation", a_third(OPERATIONS), ids=lambda each: each.name)
def test_every_operation_answers_as_the_document_says(operation: Operation, running: Running) -> None:
    # Not by `schema.parametrize()`: each worker would make the requests of all operations when it collects.
    build_operation_test(
        config=_schema().config,
        operation=_schema()[operation.path][operation.method],
        test_func=_ask,
        given_kwargs={},
        feedback=FeedbackSources(),
    )(running=running)


def _ask(case: Any, running: Running) -> None:
    hurried(case)
    if next(running.turns):
        named(case, running.names)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = case.call_and_validate(
        base_url=running.url, session=running.session, headers=headers, timeout=PATIENCE_S
    )
    if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and _is_allowed(case):
        is_ruled = case.operation.definition.raw["operationId"] in _RULED
        assert is_ruled or answer.json()["code"] not in _OF_SHAPE, answer.text
    assert running.faults.taken() == []
