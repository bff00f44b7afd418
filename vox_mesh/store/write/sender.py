"""Send scripts in the cheapest batch that isolates them from each other."""

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
from vox_mesh.store.script import Outcome, Script, Statement, Verdict, WriterId, guard
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.in_flight import InFlightBatch
from vox_mesh.store.write.interceptor import DirectDatabase, WriteInterceptor
from vox_mesh.store.write.retry import RetryingCaller
from vox_mesh.store.write.script_batch import (
    NO_WRAPPER,
    NOTHING_TO_PRUNE,
    BatchWrapper,
    CommitFailed,
    IsolatedBatch,
    OptimisticBatch,
    Pruning,
    RolledBack,
    ScriptBatch,
    SingleStatementBatch,
    StaleWrapper,
)

T = TypeVar("T")

_OUTCOMES_OF: Final = named("scripts")["outcomes_of"]

_MAX_ROLLBACK_CHANCE: Final = 0.3
"""The highest chance of a rollback at which an optimistic batch still pays."""

_SHARE_DECAY: Final = 0.8
_MIN_SHARE: Final = 1e-4
_MAX_REBINDINGS: Final = 64


class Sender:
    """Sends scripts and returns a verdict for each."""

    def __init__(
        self,
        run: Callable[[Batch], Awaitable[BatchResult]],
        caller: RetryingCaller,
        writer_id: WriterId,
        key_pruner: IdempotencyKeyPruner,
        *,
        interceptor: WriteInterceptor | None = None,
        database: DirectDatabase | None = None,
    ) -> None:
        self._run = run
        self._caller = caller
        self._writer_id = writer_id
        self._key_pruner = key_pruner
        self._interceptor = interceptor
        self._database = database
        self._failing_share = 0.0

    async def send(
        self, scripts: Sequence[Script], in_flight: InFlightBatch, *, may_prune_all: bool
    ) -> list[Verdict]:
        """Send the scripts, in one batch unless the server can't parse it. Return a verdict for each."""
        try:
            try:
                return await self._send_wrapped(scripts, in_flight, may_prune_all)  # the usual case
            except StaleWrapper:
                known = await self._recall_verdicts(scripts, in_flight)
                return await self._send_until_settled(scripts, in_flight, may_prune_all, known)
            except ChainBroken:
                return await self._send_until_settled(scripts, in_flight, may_prune_all, {})
        except ScriptFailed as error:
            if isinstance(error, BadStatement) and await self._migrate_again(in_flight):
                return await self.send(scripts, in_flight, may_prune_all=may_prune_all)
            if len(scripts) == 1:
                await self._log_unparsed(scripts[0], error, in_flight)
                return [error]
        # A server parses all statements of a batch before it runs any, so one that it can't parse fails
        # them all. Sent one by one, each script fails or succeeds independently.
        verdicts: list[Verdict] = []
        for script in scripts:
            try:
                verdicts += await self._send_until_settled([script], in_flight, may_prune_all, {})
            except ScriptFailed as error:
                await self._log_unparsed(script, error, in_flight)
                verdicts.append(error)
            in_flight.mark_outcome_unknown()  # from here on, part of it has been applied
        return verdicts

    async def _migrate_again(self, in_flight: InFlightBatch) -> bool:
        """Migrate the database if it was rolled back to an older schema. Return whether it was."""
        database = self._database
        return database is not None and await self._reach(database.prepare_again, in_flight)

    async def _log_unparsed(self, script: Script, error: ScriptFailed, in_flight: InFlightBatch) -> None:
        """Append the log entry of a script that the server could not parse."""
        if script.op is not None:
            refused = Script(guard("0", refusal=error.code), key=script.key, op=script.op)
            await self._send_until_settled([refused], in_flight, may_prune_all=False, known={})

    async def _send_until_settled(
        self,
        scripts: Sequence[Script],
        in_flight: InFlightBatch,
        may_prune_all: bool,
        known: dict[str, Verdict],
    ) -> list[Verdict]:
        """Send the scripts that are not in `known` yet, until each has a verdict.

        When a wrapper is stale, verdicts that are already in the log are taken from there.
        """
        for _ in range(_MAX_REBINDINGS):
            left = [script for script in scripts if script.key not in known] if known else scripts
            if not left:
                return [known[script.key] for script in scripts]
            try:
                verdicts = await self._send_wrapped(left, in_flight, may_prune_all)
            except StaleWrapper:
                known |= await self._recall_verdicts(left, in_flight)
                continue
            except ChainBroken as error:  # scripts without an op do not need the log
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

    async def _send_wrapped(
        self, scripts: Sequence[Script], in_flight: InFlightBatch, may_prune_all: bool
    ) -> list[Verdict]:
        """Send the scripts optimistically if that is likely to succeed, else each in its own savepoint."""
        wrapper = NO_WRAPPER if self._interceptor is None else self._interceptor.bind(scripts)
        if wrapper is None:
            wrapper = await self._prepare_wrapper(scripts, in_flight)
        pruning = self._key_pruner.due(may_prune_all=may_prune_all)
        verdicts: list[Verdict] | None = None
        failed_share = 0.0
        if not self._failing_share or self._rollback_chance(len(scripts)) <= _MAX_ROLLBACK_CHANCE:
            batch = self._optimistic_batch(scripts, pruning, wrapper)
            try:
                verdicts = await self._run_batch(batch, in_flight)
            except RolledBack as back:
                in_flight.has_earlier_copy |= back.knew_keys
            else:
                if (in_flight.is_outcome_unknown or in_flight.is_replay) and batch.is_single_statement:
                    verdicts = _unambiguous(verdicts)
        if verdicts is None:
            verdicts = await self._run_batch(
                IsolatedBatch(self._writer_id, scripts, pruning, wrapper), in_flight
            )
            # Their keys were needed for the verdicts; from now on the log holds them.
            self._key_pruner.note_answered(
                script.key for script in scripts if script.op and not script.has_answer
            )
            failed_share = sum(isinstance(verdict, MeshError) for verdict in verdicts) / len(scripts)
        if failed_share or self._failing_share:
            share = _SHARE_DECAY * self._failing_share + (1 - _SHARE_DECAY) * failed_share
            self._failing_share = share if share > _MIN_SHARE else 0.0
        if pruning is not NOTHING_TO_PRUNE:
            self._key_pruner.note_pruned(pruning)
        return _mark_repeated(scripts, verdicts) if in_flight.is_outcome_unknown else verdicts

    def _rollback_chance(self, scripts: int) -> float:
        """Return the chance that one of this number of scripts fails, by the share that failed lately."""
        return 1.0 - (1.0 - self._failing_share) ** scripts

    def _optimistic_batch(
        self, scripts: Sequence[Script], pruning: Pruning, wrapper: BatchWrapper
    ) -> ScriptBatch:
        """Return the batch of these scripts without savepoints."""
        if len(scripts) == 1 and pruning is NOTHING_TO_PRUNE:
            (script,) = scripts
            if script.shape is not None and script.shape.single_statement is not None:
                return SingleStatementBatch(self._writer_id, script, wrapper)
        return OptimisticBatch(self._writer_id, scripts, pruning, wrapper)

    async def _prepare_wrapper(self, scripts: Sequence[Script], in_flight: InFlightBatch) -> BatchWrapper:
        """Let the interceptor load its state from the database, and return the wrapper that it binds."""
        interceptor, database = self._interceptor, self._database
        assert interceptor is not None
        assert database is not None
        wrapper: BatchWrapper | None = None
        while wrapper is None:
            await self._reach(lambda: interceptor.prepare(database), in_flight)
            wrapper = interceptor.bind(scripts)
        return wrapper

    async def _recall_verdicts(
        self, scripts: Sequence[Script], in_flight: InFlightBatch
    ) -> dict[str, Verdict]:
        """Return the verdicts that the log holds: if a wrapper is stale, a copy may have been applied."""
        interceptor, database = self._interceptor, self._database
        assert interceptor is not None
        assert database is not None
        in_flight.has_earlier_copy = True
        try:
            known = dict(await self._reach(lambda: interceptor.recall(scripts, database), in_flight))
        except (StaleIncarnation, KeyRefused, DatabaseClockJumped):
            # The error says why the wrapper is stale, but not whether a copy was applied.
            keys = orjson.dumps([script.key for script in scripts]).decode()
            known_keys = Statement(_OUTCOMES_OF, (*self._writer_id[:2], keys))
            in_flight.has_earlier_copy = bool(await self._reach(lambda: database.ask(known_keys), in_flight))
            raise
        in_flight.has_earlier_copy = any(script.op is None for script in scripts)  # not in the log
        return known

    async def _reach(self, call: Callable[[], Awaitable[T]], in_flight: InFlightBatch) -> T:
        """Make a call, with retries, that applies none of the batch's scripts."""

        async def attempt() -> T:
            try:
                return await call()
            except DatabaseUnavailable as fault:
                in_flight.fault = fault
                raise

        return await self._caller.call(attempt, in_flight.is_wanted)

    def _run_batch(self, batch: ScriptBatch, in_flight: InFlightBatch) -> Awaitable[list[Verdict]]:
        """Run the batch, with retries while a caller waits for it."""
        return self._caller.call(self._attempt, in_flight.is_wanted, batch, in_flight)

    async def _attempt(self, batch: ScriptBatch, in_flight: InFlightBatch) -> list[Verdict]:
        """Run the batch once, and keep track of what may be applied."""
        in_flight.is_out = True
        try:
            result = await self._run(batch)
            verdicts = batch.verdicts(result)
            if self._interceptor is not None:
                self._interceptor.settled(batch.entries(result))
        except DatabaseUnavailable as fault:
            in_flight.fault = fault
            if isinstance(fault, NoAnswer):
                in_flight.mark_outcome_unknown()
            raise
        except CommitFailed:
            in_flight.mark_outcome_unknown()
            raise
        except (MeshError, RolledBack, StaleWrapper):
            raise
        except BaseException:
            in_flight.mark_outcome_unknown()  # cancelled or an unexpected error, after it was sent
            raise
        finally:
            in_flight.is_out = False
        return verdicts


def _unambiguous(verdicts: list[Verdict]) -> list[Verdict] | None:
    """Return the verdict of a single statement that was lost before or is replayed; `None` if ambiguous.

    An empty answer is ambiguous after a lost one: this node may have been superseded after the statement was
    applied. And a replayed script must not count as applied if the guard did not hold. Only a batch with a
    guard can tell.
    """
    (outcome,) = verdicts
    return None if isinstance(outcome, Outcome) and not outcome.rows else verdicts


def _mark_repeated(scripts: Sequence[Script], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Mark repeatable scripts as repeated: an answer got lost, so this may not have been their first run."""
    return [
        verdict._replace(repeated=True) if script.repeatable and isinstance(verdict, Outcome) else verdict
        for script, verdict in zip(scripts, verdicts, strict=True)
    ]
