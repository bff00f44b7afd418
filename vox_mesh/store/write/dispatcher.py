"""The sender: one request after another, each in the way that costs least and leaves neighbours alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import orjson

from vox_mesh.errors import (
    BadStatement,
    ChainBroken,
    DatabaseClockJumped,
    DatabaseUnavailable,
    KeyRefused,
    MeshError,
    NoAnswer,
    Overloaded,
    ScriptFailed,
    StaleIncarnation,
)
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Script, Statement, guard
from vox_mesh.store.write.envelope import NO_FRAME, RequestWrapper, StaleWrapper
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.in_flight import InFlightRequest
from vox_mesh.store.write.journal import DirectDatabase, WriteInterceptor
from vox_mesh.store.write.request import (
    NOTHING,
    CommitFailed,
    Forgetting,
    IsolatedRequest,
    LoneRequest,
    OptimisticRequest,
    Request,
    RolledBack,
    Tenant,
    Verdict,
)
from vox_mesh.store.write.retry import RetryingCaller

T = TypeVar("T")

_OUTCOMES_OF: Final = named("scripts")["outcomes_of"]

_LIKELY: Final = 0.3
"""A failing script costs an optimistic request its whole transaction: so likely, it does not pay."""

_MEMORY: Final = 0.8
_REBINDINGS: Final = 64


class Sender:
    """Sends the scripts of a flight and says what became of each."""

    def __init__(
        self,
        run: Callable[[Batch], Awaitable[BatchResult]],
        carrier: RetryingCaller,
        tenant: Tenant,
        ledger: IdempotencyKeyPruner,
        *,
        journal: WriteInterceptor | None = None,
        desk: DirectDatabase | None = None,
    ) -> None:
        self._run = run
        self._carrier = carrier
        self._tenant = tenant
        self._ledger = ledger
        self._journal = journal
        self._desk = desk
        self._failing_share = 0.0

    async def send(
        self, scripts: Sequence[Script], flight: InFlightRequest, *, may_look_back: bool
    ) -> list[Verdict]:
        """What became of the scripts: in one request, unless the server can't read it."""
        try:
            try:
                return await self._framed(scripts, flight, may_look_back)  # the usual case
            except StaleWrapper:
                known = await self._settled(scripts, flight)
                return await self._together(scripts, flight, may_look_back, known)
            except ChainBroken:
                return await self._together(scripts, flight, may_look_back, {})
        except ScriptFailed as error:
            if isinstance(error, BadStatement) and await self._is_migrated_again(flight):
                return await self.send(scripts, flight, may_look_back=may_look_back)
            if len(scripts) == 1:
                await self._log_unread(scripts[0], error, flight)
                return [error]
        # A server reads all statements of a request before it runs any, so that one which it can't read
        # fails them all. Alone, each script fails or succeeds by itself.
        verdicts: list[Verdict] = []
        for script in scripts:
            try:
                verdicts += await self._together([script], flight, may_look_back, {})
            except ScriptFailed as error:
                await self._log_unread(script, error, flight)
                verdicts.append(error)
            flight.doubt()  # should it end here, some of it has been applied
        return verdicts

    async def _is_migrated_again(self, flight: InFlightRequest) -> bool:
        """Whether a statement could not be read because the database had gone back to an older schema."""
        desk = self._desk
        return desk is not None and await self._reach(desk.prepare_again, flight)

    async def _log_unread(self, script: Script, error: ScriptFailed, flight: InFlightRequest) -> None:
        """A script that the server could not even read has its entry in the log like any other."""
        if script.op is not None:
            refused = Script(guard("0", refusal=error.code), key=script.key, op=script.op)
            await self._together([refused], flight, may_look_back=False, known={})

    async def _together(
        self,
        scripts: Sequence[Script],
        flight: InFlightRequest,
        may_look_back: bool,
        known: dict[str, Verdict],
    ) -> list[Verdict]:
        """What became of the scripts; those that the log knows already are answered from it."""
        for _ in range(_REBINDINGS):
            left = [script for script in scripts if script.key not in known] if known else scripts
            if not left:
                return [known[script.key] for script in scripts]
            try:
                verdicts = await self._framed(left, flight, may_look_back)
            except StaleWrapper:
                known |= await self._settled(left, flight)
                continue
            except ChainBroken as error:  # those that need no log can go on without it
                unlogged = {script.key: error for script in left if script.op is not None}
                if len(unlogged) == len(left):
                    raise
                known |= unlogged
                continue
            if not known:
                return verdicts
            known |= {script.key: verdict for script, verdict in zip(left, verdicts, strict=True)}
        raise Overloaded(
            "others appended to the same chain each time this was tried", hint="run fewer commands at once"
        )

    async def _framed(
        self, scripts: Sequence[Script], flight: InFlightRequest, may_look_back: bool
    ) -> list[Verdict]:
        """What became of the scripts: in one go if that works, else each in its own savepoint."""
        frame = NO_FRAME if self._journal is None else self._journal.bind(scripts)
        if frame is None:
            frame = await self._prepared(scripts, flight)
        forgetting = self._ledger.due(may_look_back=may_look_back)
        if 1.0 - (1.0 - self._failing_share) ** len(scripts) <= _LIKELY:
            try:
                verdicts = await self._carried(self._optimistic(scripts, forgetting, frame), flight)
            except RolledBack as back:
                flight.is_unsettled |= back.knew_keys
            else:
                self._ledger.forgot(forgetting)
                self._failing_share *= _MEMORY
                return _doubted(scripts, verdicts) if flight.is_doubtful else verdicts
        verdicts = await self._carry(IsolatedRequest(self._tenant, scripts, forgetting, frame), flight)
        self._ledger.forgot(forgetting)
        # Their keys were needed for the verdicts; from now on the log remembers them.
        self._ledger.answered(script.key for script in scripts if script.op and not script.has_answer)
        failed = sum(1 for verdict in verdicts if isinstance(verdict, MeshError))
        self._failing_share = _MEMORY * self._failing_share + (1 - _MEMORY) * failed / len(scripts)
        return _doubted(scripts, verdicts) if flight.is_doubtful else verdicts

    async def _carried(self, request: Request, flight: InFlightRequest) -> list[Verdict]:
        """The same as `_carry`; but a lone script that answers nothing says too little when in doubt.

        Its process may have been replaced since it was applied: a request with a guard can tell.
        """
        verdicts = await self._carry(request, flight)
        if flight.is_doubtful and isinstance(request, LoneRequest):
            (outcome,) = verdicts
            if isinstance(outcome, Outcome) and not outcome.rows:
                raise RolledBack
        return verdicts

    def _optimistic(
        self, scripts: Sequence[Script], forgetting: Forgetting, frame: RequestWrapper
    ) -> Request:
        script = scripts[0]
        if len(scripts) == 1 and script.is_lone and forgetting is NOTHING:
            return LoneRequest(self._tenant, script, frame)
        return OptimisticRequest(self._tenant, scripts, forgetting, frame)

    async def _prepared(self, scripts: Sequence[Script], flight: InFlightRequest) -> RequestWrapper:
        """The frame, once the journal has learnt from the database what it takes to make it."""
        journal, desk = self._journal, self._desk
        assert journal is not None
        assert desk is not None
        frame: RequestWrapper | None = None
        while frame is None:
            await self._reach(lambda: journal.prepare(desk), flight)
            frame = journal.bind(scripts)
        return frame

    async def _settled(self, scripts: Sequence[Script], flight: InFlightRequest) -> dict[str, Verdict]:
        """What the log says of scripts whose frame did not fit: a copy of them may have come before."""
        journal, desk = self._journal, self._desk
        assert journal is not None
        assert desk is not None
        flight.is_unsettled = True
        try:
            known = dict(await self._reach(lambda: journal.recall(scripts, desk), flight))
        except (StaleIncarnation, KeyRefused, DatabaseClockJumped):
            # It says why the frame did not fit, but not what came before.
            keys = orjson.dumps([script.key for script in scripts]).decode()
            known_keys = Statement(_OUTCOMES_OF, (*self._tenant[:2], keys))
            flight.is_unsettled = bool(await self._reach(lambda: desk.ask(known_keys), flight))
            raise
        flight.is_unsettled = any(script.op is None for script in scripts)  # of which no log tells
        return known

    async def _reach(self, call: Callable[[], Awaitable[T]], flight: InFlightRequest) -> T:
        """Make a call that applies nothing of the flight's."""

        async def attempt() -> T:
            try:
                return await call()
            except DatabaseUnavailable as fault:
                flight.fault = fault
                raise

        return await self._carrier.carry(attempt, lambda: flight.is_wanted)

    async def _carry(self, request: Request, flight: InFlightRequest) -> list[Verdict]:
        async def attempt() -> list[Verdict]:
            flight.is_out = True
            try:
                result = await self._run(request.batch)
                verdicts = request.verdicts(result)
                if self._journal is not None:
                    self._journal.settled(request.entries(result))
            except DatabaseUnavailable as fault:
                flight.fault = fault
                if isinstance(fault, NoAnswer):
                    flight.doubt()
                raise
            except CommitFailed:
                flight.doubt()
                raise
            except (MeshError, RolledBack, StaleWrapper):
                raise
            except BaseException:
                flight.doubt()  # cut off, or something unforeseen: the request was on its way
                raise
            finally:
                flight.is_out = False
            return verdicts

        return await self._carrier.carry(attempt, lambda: flight.is_wanted)


def _doubted(scripts: Sequence[Script], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """An answer got lost: of scripts that are not remembered, this may not have been the first run."""
    return [
        verdict._replace(repeated=True) if script.repeatable and isinstance(verdict, Outcome) else verdict
        for script, verdict in zip(scripts, verdicts, strict=True)
    ]
