"""Bugs in jobs."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql

_HELD: Final = (
    "j.claim_token = i.value ->> 'claim_token' AND j.claimer = ?5 AND j.lease_until_ms IS NOT NULL "
    "AND j.state = 'running'"
)

_NEXT: Final = (
    "j.state = 'pending' AND j.waits = 0 AND i.value ->> 'claim_token' > j.claim_token "
    "AND j.claim_token = coalesce(i.value ->> 'last_token', (i.value ->> 'claim_token') - 1)"
)

_STEP_HELD: Final = (
    "AND claim_token = i.value ->> 10 AND claimer = i.value ->> 0 AND lease_until_ms >= NOW_MS"
)
_TOO_OFTEN: Final = "iif(interruptions >= max_interruptions,"
_NONCE: Final = "new_key() if new and each.nonce is None else None"

JOB_PLANTS: Final = (
    PlantedBug(
        "needed-job-pruned",
        "a job over the number that is kept is pruned, though another job waits for it",
        (
            Code("vox_mesh.runtime.retention.pruner:Pruner._prune", "removable(due, lap.gone)", "due"),
            Sql("retention", "refuse_needed_jobs", "json_each(?3) AS i", "json_each('[]') AS i"),
        ),
        ("nothing-pruned-that-is-needed",),
        ("pruning",),
    ),
    PlantedBug(
        "step-not-fenced",
        "a worker that has lost its claim stores the result of a step",
        (
            Code("vox_mesh.jobs.steps.step_log:StepLog._write_script", "self.fence(), ", ""),
            Sql("job_steps", "append_alone", _STEP_HELD, ""),
            Sql("job_steps", "append_of_jobs", _STEP_HELD, ""),
        ),
        ("test_a_worker_that_has_lost_its_claim_can_store_no_step",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "shared-signature-of-anything",
        "a signature that others share counts for any step",
        (
            Code(
                "vox_mesh.jobs.steps.attempt_signatures:AttemptSignatures.is_authentic",
                "return key is not None and is_signed(",
                "return key is not None and root is not None or is_signed(",
            ),
        ),
        ("test_a_forged_step_is_not_believed_though_others_share_its_signature",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "stored-step-runs-again",
        "a later attempt runs a step again whose result is stored",
        (Code("vox_mesh.jobs.steps.step_log:_kept", "in found.items()", "in ()"),),
        ("step-once",),
        ("steps",),
    ),
    PlantedBug(
        "unsigned-step-believed",
        "an attempt gets a result that no worker of its job has signed",
        (Code("vox_mesh.jobs.steps.job_steps:JobSteps._signed", "return []", "return list(rows)"),),
        ("test_steps_of_another_job_are_not_believed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "new-job-not-run",
        "a job that is scheduled again is taken for the one that has succeeded",
        (Code("vox_mesh.jobs.jobs:Jobs.items_for", _NONCE, "None"),),
        ("test_a_command_runs_each_time_and_with_once_only_once",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "late-report-accepted",
        "the report of an agent that has lost its claim completes the job under the claim of another",
        (Code("vox_mesh.jobs.work.work:AgentWork._held", "job.claim_token != claim_token or ", ""),),
        ("test_a_late_report_of_an_agent_is_refused",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "task-of-the-row-believed",
        "a task leads to the job that its row names, though the op that scheduled it names another task",
        (
            Code(
                "vox_mesh.jobs.work.mcp_tasks:McpTasks._named_in_log",
                "scheduled is None or not names_task(scheduled.item, hashed)",
                "scheduled is None",
            ),
        ),
        ("test_a_row_that_leads_to_another_job_is_not_followed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "task-of-any-agent",
        "an agent reads, answers and cancels the task of another, if it learns its id",
        (Code("vox_mesh.jobs.work.mcp_tasks:McpTasks._find", " or principal not in (None, agent)", ""),),
        ("test_a_task_of_another_agent_is_not_found",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ended-task-dropped",
        "a task whose job has ended goes with the next one, though its client has not asked for its result",
        (Sql("mcp_tasks", "make_room", "LIMIT max(0,", "LIMIT max(1,"),),
        ("tasks-none-lost", "tasks-end-once"),
        ("tasks",),
    ),
    PlantedBug(
        "tags-of-the-row-believed",
        "a job goes to an agent without its tags, since a look at the table did not see them",
        (Code("vox_mesh.jobs.worker.claim_round:ClaimRound._is_allowed", " and tags >= job.tags", ""),),
        ("test_the_tags_that_count_are_those_of_the_verified_manifest",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "tags-not-filtered",
        "jobs whose tags an agent does not have keep it from seeing others",
        (Sql("jobs", "claimable_but", "AND (?10 IS NULL OR", "AND (?10 IS NULL OR 1 OR"),),
        ("test_jobs_with_tags_do_not_hold_up_others",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "capacity-not-in-transaction",
        "an agent that takes jobs through two nodes at once holds more than it wants",
        (Sql("job_takes", "refuse_over_capacity", "> ?4", "> ?4 + 1000"),),
        ("test_an_agent_holds_no_more_jobs_than_its_capacity",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "interruption-counted-as-failure",
        "an attempt whose worker was lost counts as failed",
        (
            Sql(
                "jobs",
                "expire",
                "interruptions = interruptions + 1,",
                "failures = failures + 1,",
            ),
        ),
        ("test_a_job_that_kills_its_workers_fails_only_by_its_limit_of_interruptions",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "interruptions-without-limit",
        "a job that kills each of its workers is run again, whatever its limit",
        (
            Sql(
                "jobs", "expire", "iif(interruptions >= max_interruptions, 'failed', 'pending')", "'pending'"
            ),
            Sql(
                "jobs",
                "expire",
                "ended_ms = iif(interruptions >= max_interruptions,",
                "ended_ms = iif(false,",
            ),
            Sql("jobs", "expire", "iif(interruptions >= max_interruptions, claimer, NULL)", "NULL"),
        ),
        ("test_a_job_that_kills_its_workers_fails_only_by_its_limit_of_interruptions",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "artifact-not-verified",
        "a fetched artifact is kept whatever its hash",
        (
            Code(
                "vox_mesh.jobs.proof.artifacts:Artifacts._fetch",
                "if sink.cut or sink.content_hash != content_hash:",
                "if sink.cut:",
            ),
        ),
        ("test_an_artifact_that_its_node_has_changed_is_not_taken",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "executable-not-attested",
        "the completion of a command does not have the hash of its executable",
        (
            Code(
                "vox_mesh.jobs.worker.attempt:run_job_command",
                "CommandAttestation(environment, executable)",
                "CommandAttestation(environment)",
            ),
        ),
        ("test_a_proof_names_the_executable_that_ran_unless_it_was_changed_meanwhile",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "changed-executable-attested",
        "an executable that was changed while it ran is attested",
        (
            Code(
                "vox_mesh.jobs.exec.command:_WorkingFolder._remove",
                "not self.executable.is_unchanged()",
                "False",
            ),
        ),
        ("test_a_proof_names_the_executable_that_ran_unless_it_was_changed_meanwhile",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "changed-attestation-accepted",
        "a proof is accepted though the hash of the executable in it was changed",
        (
            Code(
                "vox_mesh.model.jobs.proof:_is_signed",
                "return is_signed(_signed_text(job_id, digest), signature, worker_id)",
                "return bool(digest)",
            ),
        ),
        ("test_a_proof_with_the_hash_of_another_executable_is_not_accepted",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "policy-root-ignored",
        "a worker runs a job whose policy root is not in its list",
        (
            Code(
                "vox_mesh.jobs.worker.claim_round:ClaimRound._is_allowed",
                "roots is None or",
                "roots is not None or",
            ),
            Code(
                "vox_mesh.jobs.queries:JobQueries.claimable",
                "roots = None if policy_roots is None else json(policy_roots)",
                "roots = None",
            ),
        ),
        ("test_a_worker_runs_no_job_whose_policy_root_it_does_not_allow",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "unknown-worker-imported",
        "the result of a worker that the mesh does not know is imported from git",
        (
            Code(
                "vox_mesh.jobs.git.received:RepositoryReader._proof",
                "key = await self._keys.in_force(node_id)",
                "key = worker_id",
            ),
        ),
        ("test_a_result_of_an_unknown_worker_is_refused",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "once-runs-again",
        "a job that is to run once is scheduled again",
        (Code("vox_mesh.jobs.jobs:Jobs.items_for", _NONCE, "new_key()"),),
        ("test_a_command_runs_each_time_and_with_once_only_once",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "completed-by-anyone",
        "a job is completed under a claim that is over",
        (
            Sql(
                "jobs",
                "complete",
                _HELD,
                "true",
            ),
        ),
        ("one-completion", "one-end"),
        ("jobs",),
    ),
    PlantedBug(
        "claimed-by-two",
        "a claimed job is claimed again",
        (
            Sql("jobs", "take", _NEXT, "j.ended_ms IS NULL AND j.waits = 0"),
            Sql("jobs", "claim", _NEXT, "j.ended_ms IS NULL AND j.waits = 0"),
        ),
        ("claims-apart", "one-completion"),
        ("jobs",),
    ),
    PlantedBug(
        "lease-cut-short",
        "a lease is revoked before it is over",
        (
            Sql("jobs", "expire", "AND j.lease_until_ms < NOW_MS)", "AND j.lease_until_ms < NOW_MS + 60000)"),
            Sql("jobs", "overdue", "lease_until_ms < ?3", "lease_until_ms < ?3 + 60000"),
        ),
        ("claims-apart",),
        ("jobs",),
    ),
    PlantedBug(
        "needs-ignored",
        "a job starts before its dependencies have ended",
        (Sql("jobs", "schedule", "coalesce(i.value ->> 'waits', 0)", "0"),),
        ("jobs-in-order",),
        ("jobs",),
    ),
    PlantedBug(
        "fan-in-released-early",
        "a job with many predecessors starts when the first of them has ended",
        (
            Sql("jobs", "release", "IS NOT NULL AND EXISTS", "IS NULL AND EXISTS"),
            Sql("jobs", "release", "SET waits = (SELECT count(*)", "SET waits = 0 * (SELECT count(*)"),
            Code("vox_mesh.jobs.job_ends:JobEnds.unmet", "if not is_met:", "if False:"),
        ),
        ("jobs-in-order",),
        ("fan-in",),
    ),
    PlantedBug(
        "cron-fired-twice",
        "a cron is fired by every node that finds it due",
        (Sql("crons", "move_on", "next_ms = ?6", "next_ms = next_ms"),),
        ("crons-once",),
        ("jobs",),
    ),
    PlantedBug(
        "rule-fired-twice",
        "a rule is fired by every node that sees the op",
        (Sql("rules", "advance_and_fire", "position = ?4, last_op", "last_op"),),
        ("rules-once",),
        ("rules",),
    ),
    PlantedBug(
        "reserved-not-counted",
        "a job begins although the last tokens of its budget are reserved for others",
        tuple(
            Sql("jobs", name, "l.most - l.spent - (SELECT", "l.most - l.spent - 0 * (SELECT")
            for name in ("reserve", "claim_inputs")
        ),
        ("budget-not-exceeded",),
        ("spending",),
    ),
    PlantedBug(
        "approval-applied-twice",
        "what was approved is applied by every node that finds it",
        (
            Sql("approvals", "end", "SET state = ?4", "SET state = coalesce(state, ?4)"),
            Code(
                "vox_mesh.oplog.grants.approvals:_ApprovedStep.key",
                "return self.request.applied_as",
                "return new_key()",
            ),
        ),
        ("approval-applied-once",),
        ("approvals",),
    ),
    PlantedBug(
        "ended-twice",
        "a job that has ended is aborted, and ends again",
        (Sql("jobs", "abort", "WHERE j.ended_ms IS NULL)", ")"),),
        ("one-end",),
        ("jobs",),
    ),
)
