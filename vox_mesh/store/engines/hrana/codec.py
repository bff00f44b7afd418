"""Encode batches and decode results as Hrana's JSON."""

from __future__ import annotations

import base64
import math
from typing import Any

import orjson

from vox_mesh.errors import (
    DatabaseBusy,
    DatabaseFault,
    MeshError,
    NoAnswer,
    ServerFull,
    TooLarge,
    Unauthorized,
)
from vox_mesh.store.batch import (
    DONE,
    All,
    Batch,
    BatchResult,
    Condition,
    Failed,
    Not,
    Ok,
    StepError,
    StepResult,
    StepRows,
)
from vox_mesh.store.engines.sqlite import query_error
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.script import Statement


def encode_batch(batch: Batch) -> orjson.Fragment:
    """Return the batch as JSON, encoded once: a retry sends the same bytes."""
    if batch.encoded is None:
        steps: list[dict[str, Any]] = []
        for index, (sql, params, condition, wants_rows) in enumerate(batch.steps):
            step = {"stmt": {"sql": sql, "args": [_value(each) for each in params], "want_rows": wants_rows}}
            if condition is not None:
                step["condition"] = _condition(condition)
            elif index:
                step["condition"] = {"type": "ok", "step": index - 1}
            steps.append(step)
        batch.encoded = orjson.dumps({"steps": steps})
    return orjson.Fragment(batch.encoded)


def encode_statement(statement: Statement) -> dict[str, Any]:
    """Return a query as JSON."""
    args = [_value(param) for param in statement.params]
    return {"sql": statement.sql, "args": args, "want_rows": True}


def decode_batch(result: dict[str, Any]) -> BatchResult:
    """Return the result of each step."""
    steps: list[StepResult] = []
    for done, failed in zip(result["step_results"], result["step_errors"], strict=True):
        if failed is not None:
            steps.append(_error(failed))
        elif done is None:
            steps.append(None)
        else:
            steps.append(StepRows(_rows(done)[1]) if done["cols"] else DONE)
    return BatchResult(steps)


def last_frame(result: dict[str, Any]) -> int | None:
    """Return the last frame of the server's log that this result reflects."""
    index = result.get("replication_index")
    return None if index is None else int(index)


def parse(body: str | bytes) -> dict[str, Any]:
    """Parse a message. Raise `NoAnswer` if it is not JSON, since the request may have been applied."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise NoAnswer("the server answered with something that is not Hrana")
    return message


def decode_rows(result: dict[str, Any]) -> Rows:
    """Return the rows of a query."""
    columns, rows = _rows(result)
    return Rows(columns, rows)


def request_error(error: dict[str, Any]) -> MeshError:
    """Return the error of a request that the server rejected as a whole; none of it was run."""
    failed = _error(error)
    if failed.is_busy:
        return DatabaseBusy(f"the database is busy: {failed.message}")
    if failed.code.startswith(("SQLITE_", "SQL_", "ARGS_")):
        return query_error(failed)
    text = f"{failed.code} {failed.message}".lower()
    if "too large" in text:
        return TooLarge(f"the server would not have it: {failed.message}", statement=0, hint="ask for less")
    if any(word in text for word in ("auth", "jwt", "unauthorized", "forbidden", "blocked", "readonly")):
        return unauthorized(failed.message)
    if "too many" in text or "connection limit" in text:
        return server_full()
    return DatabaseFault(f"the server refused the request: {failed.message}")


def unauthorized(message: str) -> Unauthorized:
    """Return the error of a request that the token does not allow."""
    return Unauthorized(
        f"the server refused the token: {message}",
        hint="check that VOX_DB_TOKEN is set, valid and allowed to do this",
    )


def server_full() -> ServerFull:
    """Return the error of a server that accepts no further streams."""
    return ServerFull(
        "the server closed the stream as it was opened: it is probably full",
        hint="raise its --max-concurrent-connections well above twice the number of nodes",
    )


def _value(value: Value) -> dict[str, Any]:
    # In order of frequency.
    if isinstance(value, str):
        return {"type": "text", "value": value}
    if isinstance(value, int):
        return {"type": "integer", "value": str(int(value))}
    if value is None:
        return {"type": "null"}
    if isinstance(value, float):
        return {"type": "float", "value": value}
    return {"type": "blob", "base64": base64.b64encode(value).decode()}


def _plain(value: dict[str, Any]) -> Value:
    match value["type"]:
        case "text":
            return str(value["value"])
        case "integer":
            return int(value["value"])
        case "null":
            return None
        case "float":
            number = value["value"]  # the server sends null for an infinite one
            return math.inf if number is None else float(number)
        case _:
            text: str = value["base64"]
            # The server omits the padding, which the decoder needs.
            return base64.b64decode(text + "=" * (-len(text) % 4))


def _condition(condition: Condition) -> dict[str, Any]:
    if isinstance(condition, Ok):
        return {"type": "ok", "step": condition.step}
    if isinstance(condition, Failed):
        return {"type": "error", "step": condition.step}
    if isinstance(condition, Not):
        return {"type": "not", "cond": _condition(condition.condition)}
    kind = "and" if isinstance(condition, All) else "or"
    return {"type": kind, "conds": [_condition(each) for each in condition.conditions]}


def _rows(result: dict[str, Any]) -> tuple[tuple[str, ...], list[list[Value]]]:
    columns = tuple(column["name"] or "" for column in result["cols"])
    return columns, [[_plain(value) for value in row] for row in result["rows"]]


def _error(error: dict[str, Any]) -> StepError:
    message = error.get("message") or "unknown error"
    return StepError(error.get("code") or "UNKNOWN", message.removeprefix("SQLite error: "))
