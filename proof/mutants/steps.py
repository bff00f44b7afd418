"""Bugs in durable steps: their waits, forks and compensations."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql

_LOG: Final = "vox_mesh.jobs.steps.step_log:StepLog"
_WRITER: Final = "vox_mesh.jobs.steps.step_writer:StepWriter"
_RUNNER: Final = "vox_mesh.jobs.steps.step_runner"
_WAITS: Final = "vox_mesh.jobs.steps.job_waits:JobWaits"
_CLAIMED: Final = 'Statement(_SQL["refuse_unless_claimed"], values, refusal=_TAKEN),\n    )'
_CLAIMED_AND_ACKED: Final = f'{_CLAIMED[:-1]}    Statement(_SQL["ack_message"], values),\n    )'
_TIMED_OUT_LATER: Final = "test_a_wait_ends_at_its_deadline_and_later_attempts_see_the_same"
_STORED_MESSAGE: Final = "test_a_message_that_is_stored_during_a_suspension_is_not_lost"
_STORED_STEP: Final = "test_a_job_is_suspended_after_the_step_that_is_being_stored"

_HELD: Final = "AND claim_token = i.value ->> 10"
_APPENDS: Final = ("append_alone", "append_of_jobs")

STEP_PLANTS: Final = (
    PlantedBug(
        "late-step-among-others",
        "a step of a late worker is stored if it shares its statement with the steps of other jobs",
        [Sql("job_steps", name, _HELD, "") for name in _APPENDS],
        ("test_of_steps_that_are_stored_together_only_those_of_a_late_worker_are_refused",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "step-without-predecessor",
        "a step is stored in one statement with others though the steps before it are lost",
        [Sql("job_steps", name, "AND link = i.value ->> 2", "") for name in _APPENDS],
        ("test_a_step_whose_predecessors_are_lost_is_refused_alone",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "part-of-a-write",
        "steps that are stored together count as stored though the place of one was taken",
        (
            Code(
                f"{_WRITER}._write",
                "stored[attempt] == len(each.rows)",
                "stored[attempt] > 0",
            ),
        ),
        ("test_all_steps_of_a_write_are_stored_though_one_of_their_places_is_taken",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "suspended-during-a-write",
        "a job is suspended while the result of a step is being stored, and the message in it is lost",
        (Code(f"{_LOG}.rest", "if self._taken:", "if False:"),),
        (_STORED_MESSAGE, _STORED_STEP),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "step-out-of-turn",
        "the suspension of a job takes the place of a step that is being stored, and is refused",
        (
            Code(
                "vox_mesh.jobs.worker.attempt:_suspended",
                "(error := await context.steps.log.rest())",
                "(error := None)",
            ),
        ),
        (_STORED_STEP,),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "suspended-over-the-unknown",
        "a job is suspended though the outcome of storing a step is unknown, and its result is removed",
        (Code(f"{_LOG}.rest", "isinstance(self._failure, Refused)", "True"),),
        (_STORED_MESSAGE,),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "attempts-mixed-up",
        "a late attempt takes the step of a later attempt at its job for its own",
        (
            Code(
                f"{_WRITER}._write",
                "stored[attempt] ==",
                "sum(count for key, count in stored.items() if key[0] == attempt[0]) ==",
            ),
        ),
        ("test_of_two_attempts_at_a_job_only_the_later_one_has_stored_its_step",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "left-unwritten",
        "steps are not stored if an attempt with which they would have been is cancelled",
        (Code(f"{_WRITER}.withdraw", "task.add_done_callback(self._go_on)", "pass"),),
        ("test_others_go_on_though_the_one_that_withdraws_is_cancelled",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "compensated-forwards",
        "the compensations of an aborted job run in the order in which they were registered",
        (Code(f"{_RUNNER}:StepRunner.compensate", ", reverse=True", ""),),
        ("test_a_saga_is_undone_from_where_it_was_aborted",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "compensated-again",
        "compensations that have run are run again after their worker was killed",
        (
            Code(
                "vox_mesh.jobs.steps.step_log:StepLog.lift_limit",
                "max(self._only or (0,))",
                "len(self.rows)",
            ),
        ),
        ("test_the_compensations_go_on_on_another_node_where_one_was_killed",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "compensated-while-running",
        "the compensations of an aborted job begin while its worker may go on with it",
        (
            Code(
                "vox_mesh.jobs.steps.job_forks:JobForks.cleanup_of",
                "0 if job.claimer is None else job.lease_ms or DEFAULT_LEASE_MS",
                "0",
            ),
        ),
        ("test_the_compensations_of_a_job_that_ran_wait_for_its_lease_to_end",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "unsigned-abort-believed",
        "the compensations of a job run though no signed op aborts it",
        (
            Code(
                "vox_mesh.jobs.steps.job_cleanups:JobCleanups.run_due",
                "end is not None and end.state is JobState.ABORTED",
                "True",
            ),
        ),
        ("test_no_compensation_runs_for_an_abort_that_no_node_has_signed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "planted-notes-first",
        "notes of aborts that no signed op shows fill every batch, and no compensation runs",
        (
            Code(
                "vox_mesh.jobs.steps.job_cleanups:JobCleanups._next",
                'job_ids[-1] if len(job_ids) == _MAX_BATCH else ""',
                '""',
            ),
        ),
        ("test_planted_notes_hold_up_no_compensation_and_are_logged_once",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "children-outlive-abort",
        "the jobs that an aborted job waits for go on",
        (
            Code(
                "vox_mesh.jobs.steps.job_cleanups:JobCleanups._clean_up",
                "await self._abort_children(job, rows)",
                "pass",
            ),
        ),
        ("test_the_jobs_that_an_aborted_one_waits_for_are_aborted",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "fork-of-unsigned-steps",
        "a fork takes over rows that no worker of the other job has signed",
        (
            Code(
                "vox_mesh.jobs.steps.job_forks:JobForks.taken_over",
                "self._steps.verified(origin.job_id)",
                "self._steps.stored(origin.job_id)",
            ),
        ),
        ("test_a_fork_takes_over_only_what_a_worker_has_signed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "resumed-twice",
        "a job that is resumed twice goes on as two jobs",
        (
            Code(
                "vox_mesh.jobs.steps.job_forks:JobForks.resume",
                "MAX_STEPS + 1)))",
                "MAX_STEPS + 1), nonce=new_key()))",
            ),
        ),
        ("test_a_failed_job_goes_on_from_its_stored_steps",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "sleeps-for-ever",
        "a sleep that is over is still shown as waiting",
        (Code("vox_mesh.views.job_steps:_Reached.by", "until_ms <= end_ms", "until_ms < 0"),),
        ("test_a_sleep_that_is_over_is_done",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "woken-by-anyone",
        "what a suspended job waits for is over by an op that no node has signed",
        (
            Code(
                "vox_mesh.jobs.job_ends:JobEnds._authentic",
                "authentic = _authentic_of(runs, self._store.writer_id.scope_id)",
                "authentic = entries",
            ),
        ),
        ("test_a_job_sleeps_on_unless_a_node_has_signed_that_it_is_woken",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "sleeps-again",
        "a sleep that was ended early is not stored as over",
        (
            Code(
                f"{_RUNNER}:StepRunner.sleep",
                'await self.log.append(place, StepState.DONE, {"until_ms": self._clock.now_ms})',
                "pass",
            ),
        ),
        ("test_a_woken_sleep_stays_over",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "woken-without-answer",
        "a job that waits for an answer is woken early",
        (
            Code(
                "vox_mesh.jobs.steps.early_wakes:EarlyWakes._ending_rows",
                "fresh=True)).value",
                "fresh=True)) and False",
            ),
        ),
        ("test_a_job_that_waits_for_no_time_is_not_woken",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "awaited-after-wake",
        "a job that was woken early goes on waiting for the job that its step has scheduled",
        (
            Sql(
                "job_waits",
                "unlink_unmet",
                "DELETE FROM job_predecessors AS d WHERE",
                "DELETE FROM job_predecessors AS d WHERE 0 AND",
            ),
        ),
        ("test_a_suspended_job_goes_on_when_it_is_woken",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "slept-too-little",
        "a sleep is over when another wait of its job is",
        (Code(f"{_RUNNER}:StepRunner.sleep", "until_ms <= self._clock.now_ms", "True"),),
        ("wait-not-early",),
        ("waits",),
    ),
    PlantedBug(
        "undone-forwards",
        "the compensations of a job run in the order in which they were registered",
        (Code(f"{_RUNNER}:StepRunner.compensate", ", reverse=True", ""),),
        ("undo-order",),
        ("waits",),
    ),
    PlantedBug(
        "undone-by-half",
        "only the last compensation of an aborted job runs",
        (Code(f"{_RUNNER}:StepRunner.compensate", "reverse=True)", "reverse=True)[:1]"),),
        ("undo-all",),
        ("waits",),
    ),
    PlantedBug(
        "fork-keeps-too-much",
        "a fork keeps the result of the step that it is to run again",
        (
            Code(
                "vox_mesh.model.jobs.steps.step_origin:taken_over",
                "place < before",
                "place <= before",
            ),
        ),
        ("fork-keeps",),
        ("steps",),
    ),
    PlantedBug(
        "deadline-not-stored",
        "the deadline of a step is not stored, and a later attempt waits on without it",
        (Code(f"{_RUNNER}:_until", "deadline_ms is None", "True"),),
        (_TIMED_OUT_LATER,),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "timeout-forgotten",
        "a later attempt does not see that the deadline of a step has passed",
        (Code(f"{_RUNNER}:StepRunner._fail_if_late", ', "deadline_ms": deadline_ms', ""),),
        (_TIMED_OUT_LATER,),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "awaited-message-lost",
        "the message that a step waits for is acknowledged before it is stored",
        (
            Code(f"{_WAITS}._is_claimed", _CLAIMED, _CLAIMED_AND_ACKED),
            Code(f"{_WAITS}.acknowledge", "return [", "return [] and ["),
        ),
        ("test_a_message_is_not_lost_with_the_attempt_that_has_found_it",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "awaited-message-of-anyone",
        "a step gets a message that the node which it names did not sign",
        (Code(f"{_WAITS}.claim", "if is_genuine and message.fault is None", "if message.fault is None"),),
        ("test_a_message_that_no_node_has_signed_wakes_no_job_twice",),
        instrument=Instrument.STEPS,
    ),
    PlantedBug(
        "gathered-failure-final",
        "a step in `gather` that has failed stays failed for the next attempt of its job",
        (
            Code(
                "vox_mesh.jobs.steps.step_log:_is_tried_again",
                "failure.get(_LAST_BEGUN, row.place)",
                "row.place",
            ),
        ),
        (
            "test_steps_that_failed_in_gather_are_tried_again_with_their_job",
            "test_a_child_that_failed_in_gather_is_scheduled_again_with_the_job",
        ),
        instrument=Instrument.STEPS,
    ),
)
