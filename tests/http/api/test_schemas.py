"""The JSON Schemas: served to readers, and valid for what the product writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import orjson
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped,unused-ignore]

from tests.support.jobs.job_desks import ended
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from tests.support.running.repositories import new_repository
from tests.support.running.schemas import assert_fits, is_valid
from vox_mesh.jobs.git.repository import GitRepository
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.oplog.archive.entry_lines import record_of
from vox_mesh.store.acting import acting_as
from vox_mesh.views.schemas import find_schema

pytestmark = pytest.mark.asyncio(loop_scope="module")

_NAMES = (
    *("bar_report", "beat_frame", "job_manifest", "op_log_entry"),
    *("proof_of_execution_envelope", "status_claim"),
)


async def test_schemas_are_listed_and_served_to_readers(served: ServedNode) -> None:
    listed = (await served.ask("GET", "/v1/schemas", token=READ_TOKEN)).json()
    assert [each["name"] for each in listed["items"]] == [*_NAMES]
    for name in _NAMES:
        shown = (await served.ask("GET", f"/v1/schemas/{name}", token=READ_TOKEN)).json()
        assert shown == find_schema(name), "nothing in a schema is hidden"
        Draft202012Validator.check_schema(shown)
        assert shown["$id"] == f"/v1/schemas/{name}"
    assert_problem(await served.ask("GET", "/v1/schemas/none"), 404, "not_known")
    assert_problem(await served.ask("GET", "/v1/schemas", token=None), 401, "token_missing")


async def test_the_schema_of_manifests_has_all_their_fields() -> None:
    schema = find_schema("job_manifest")
    (pattern,) = schema["patternProperties"]
    named = {each for each in Manifest.model_fields if not re.match(pattern, each)}
    assert named == set(schema["properties"])


async def test_manifests_proofs_and_entries_are_as_their_schemas_say(
    served: ServedNode, kind: str, tmp_path: Path
) -> None:
    node = served.node

    @node.worker.handles(kind)
    async def handle(context: JobContext) -> str:
        return "done"

    with acting_as("ada"):
        jobs = await node.jobs.schedule_all(
            [
                Manifest.of(kind=kind, payload=None, priority=2, backoff="2s", lease="90s", max_attempts=2),
                Manifest.of(command=["true"], args=[], timeout=5, env={"A": "b"}, lease="bar"),
            ]
        )
    await node.worker.start()
    await ended(node, *jobs)
    repository = new_repository(tmp_path / "repository")
    await node.job_exporter(await GitRepository.open(repository.folder)).run()
    for job in jobs:
        refs = f"refs/gatos/jobs/{job.job_id}/"
        manifest = json.loads(repository.git("show", f"{refs}manifest:job.yaml"))
        assert_fits("job_manifest", manifest)
        assert not is_valid("job_manifest", {**manifest, "command": ["x"], "kind": "y"})
        proof = json.loads(repository.git("show", f"{refs}result:proof.json"))
        assert_fits("proof_of_execution_envelope", proof["envelope"])
    for entry in await node.oplog.tail(20):
        record = orjson.loads(orjson.dumps(record_of(entry)))
        assert_fits("op_log_entry", record)
        acting = {name: record.pop(name, None) for name in ("agent", "grant")}
        assert is_valid("op_log_entry", record)  # as in version 1
        assert is_valid("op_log_entry", {**record, **acting})
        assert not is_valid("op_log_entry", {**record, "agent": "ada"})


async def test_documents_of_the_rhythm_are_as_their_schemas_say(served: ServedNode) -> None:
    rhythm = served.node.rhythm
    assert_fits("beat_frame", rhythm.frame().document())
    claim = rhythm.status.claim("ada", "task", "waiting", wait_for=["x"], progress=0.5)
    assert_fits("status_claim", claim.document())
    assert_fits("status_claim", rhythm.status.claim("ada", "task", "done").document())
