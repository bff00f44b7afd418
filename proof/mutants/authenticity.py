"""Bugs that believe what a hostile writer put into the database. The tests of attacks find them."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

AUTHENTICITY_PLANTS: Final = (
    PlantedBug(
        "key-without-its-chain",
        "a recorded key is believed though it did not open its chain",
        (
            Code(
                "vox_mesh.oplog.trusted_keys:TrustedKeys._look_up",
                "opening = opening_key(first, candidates, self._store.writer_id.scope_id)",
                "opening = candidates[0] if candidates else None",
            ),
        ),
        ("test_a_node_that_has_only_joined_cannot_be_spoken_for",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "replaced-key-opens-a-chain",
        "a key opens a chain though the owner replaced it before",
        (
            Code(
                "vox_mesh.model.oplog.key_changes:KeyChange.read",
                'since = {node_id: 1, node_id + COMMANDS: 1, **payload["from"]}',
                'since = payload["from"]',
            ),
        ),
        ("test_a_replaced_key_opens_no_chain_of_commands",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "replaced-key-sends",
        "a message of a replaced key is delivered though it did not wait when the key was replaced",
        (
            Code(
                "vox_mesh.model.oplog.key_changes:NodeKeys.covers",
                "return digest_of(signature) in change.mail",
                "return True",
            ),
        ),
        ("test_no_message_of_a_replaced_key_is_delivered_whatever_its_date",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "owner-from-the-table",
        "the owner is the one that the table names",
        (
            Code(
                "vox_mesh.oplog.ownership:Ownership.owner",
                "return None if found is None else found.owner",
                "return found and await self.recorded()",
            ),
        ),
        ("test_a_planted_owner_is_not_obeyed_and_the_owner_stays_in_charge",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "succession-without-authority",
        "a node becomes the owner without a signature of the owner before it or of the recovery key",
        (
            Code(
                "vox_mesh.model.oplog.succession:Succession.followed_by",
                "if not any(is_signed(text, proof, key) for key in authorities if key is not None):",
                "if not proof:",
            ),
        ),
        ("test_a_planted_succession_makes_no_owner",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "succession-forgotten",
        "a node obeys the old owner again when the log has lost the succession",
        (
            Code(
                "vox_mesh.oplog.ownership:Ownership._find",
                "for entry in self._steps.values() if successions.hear(entry)}",
                "for entry in () if successions.hear(entry)}",
            ),
        ),
        ("test_a_node_that_saw_the_succession_does_not_go_back",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "route-without-the-owner",
        "a route is enforced though the owner did not sign it",
        (
            Code(
                "vox_mesh.oplog.roles:Roles._valid_decisions",
                "parse(entry.payload) if witness.is_of_owner(entry) else None",
                "parse(entry.payload)",
            ),
        ),
        ("test_a_planted_owner_is_not_obeyed_and_the_owner_stays_in_charge",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "job-without-an-op",
        "a row of jobs is run though no signed op schedules it",
        (
            Code(
                "vox_mesh.jobs.authorship:JobAuthorship.genuine",
                "doubt = _NOT_SIGNED",
                "doubt = None",
            ),
        ),
        ("test_a_job_without_a_signed_op_is_not_run",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "job-put-back",
        "an ended job is run again when its row was reset",
        (
            Code(
                "vox_mesh.jobs.authorship:JobAuthorship._put_back",
                "ends = self.history.ends(job.job_id, token or 0)",
                "return None",
            ),
        ),
        ("test_a_job_that_has_ended_is_not_run_again_when_its_row_was_put_back",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "end-marked-as-refused",
        "an ended job is run again when its end is marked as refused",
        (
            Code(
                "vox_mesh.jobs.authorship:JobAuthorship._ended",
                "if not await self._trusted_keys.is_sealed(entry):",
                "if False:",
            ),
        ),
        ("test_a_job_whose_end_is_marked_as_refused_is_not_run_again",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "refused-end-unsealed",
        "a worker whose completion was refused does not say so by a seal",
        (
            Code(
                "vox_mesh.jobs.worker.finisher:Finisher._try",
                "self._is_seal_due = True",
                "self._is_seal_due = False",
            ),
        ),
        ("test_a_job_whose_completion_came_too_late_is_run_by_another_node",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "key-marked-as-refused",
        "a replaced key counts again when the op is marked as refused",
        (
            Code(
                "vox_mesh.oplog.trusted_keys:TrustedKeys._is_refused",
                "return key is None or",
                "return True or",
            ),
        ),
        ("test_a_new_key_whose_op_is_marked_as_refused_stays_in_force",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "successor-too-soon",
        "a job is run though no signed op shows that its predecessors have ended",
        (
            Code(
                "vox_mesh.jobs.authorship:JobAuthorship._before_predecessors",
                "unmet = await self.ends.unmet(conditions)",
                "unmet = {}",
            ),
        ),
        ("test_no_job_runs_before_what_it_waits_for",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "output-from-the-row",
        "a successor is given the outputs that the row of its predecessor names",
        (
            Code(
                "vox_mesh.jobs.predecessor_results:PredecessorResults._signed_result",
                "return await read_signed_result(job.core, end, read or self._read_artifact)",
                "end = end._replace(hashes={each['name']: each['hash'] for each in job.outputs})\n"
                "        return await read_signed_result(job.core, end, read or self._read_artifact)",
            ),
        ),
        ("test_a_successor_is_given_what_its_predecessor_signed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "refused-end-believed",
        "a successor is given the outputs of a completion that its author's seal says was refused",
        (
            Code(
                "vox_mesh.jobs.job_ends:JobEnds._is_accepted",
                "return entry.accepted == 1 and not await self._trusted_keys.has_changed_verdict(entry)",
                "return entry.accepted == 1",
            ),
        ),
        ("test_no_refused_completion_that_is_marked_as_accepted_gives_a_successor_its_outputs",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "checkpoint-unsigned",
        "an attempt resumes from a checkpoint that no worker of its job has signed",
        (
            Code(
                "vox_mesh.jobs.steps.job_checkpoints:JobCheckpoints.resumed",
                "if await self._is_authentic(job, found):",
                "if True:",
            ),
        ),
        ("test_an_attempt_resumes_only_from_what_a_worker_of_its_job_signed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "cron-without-an-op",
        "a cron is fired though its author did not sign the op",
        (
            Code(
                "vox_mesh.jobs.scheduling.definition_ops:DefinitionOps._is_verified",
                "known = self._verified.get(signed)",
                "known = True",
            ),
        ),
        ("test_a_cron_that_is_only_a_row_is_not_fired",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "removal-marked-as-refused",
        "a removed cron is fired when its removal is marked as refused",
        (
            Code(
                "vox_mesh.jobs.scheduling.definition_ops:DefinitionOps._counts",
                "if entry.kind != self._removal or",
                "if True or",
            ),
        ),
        ("test_a_cron_whose_removal_is_marked_as_refused_is_not_fired",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "cron-at-any-time",
        "a genuine cron is fired at the time that its row has, whatever its schedule",
        (
            Code(
                "vox_mesh.jobs.scheduling.crons:Crons._due_ms",
                "return latest_ms if is_due else None",
                "return cron.next_ms",
            ),
        ),
        ("test_a_genuine_cron_is_fired_only_at_the_times_of_its_schedule",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "rule-by-a-forged-op",
        "a rule is fired by an op that its author did not sign",
        (
            Code(
                "vox_mesh.jobs.scheduling.rules:Rules._is_genuine",
                "return await trusted_keys.is_authentic(entry) and",
                "return",
            ),
        ),
        ("test_no_forged_op_fires_a_rule",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "hash-vouches-for-any-op",
        "an op that was verified vouches for other contents under the same hash",
        (
            Code(
                "vox_mesh.jobs.scheduling.definition_ops:DefinitionOps._is_verified",
                "if not is_whole(entry):",
                "if entry is None:",
            ),
        ),
        ("test_an_op_that_was_verified_vouches_for_no_other_contents",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "kept-without-a-signature",
        "a row alone makes an artifact an output of an agent's work",
        (
            Code(
                "vox_mesh.jobs.work.takes:JobTakes._is_signed",
                "return is_signed(self._signed_text(job, output), kept[_SIGNATURE], public_key)",
                "return bool(output) and bool(public_key)",
            ),
        ),
        ("test_no_planted_artifact_becomes_an_output_of_an_agent",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "answer-to-an-earlier-question",
        "the answer to an earlier question of a job is given to a later one",
        (
            Code(
                "vox_mesh.jobs.questions:JobQuestions._signed_answer",
                "is_of_job and not await self._has_asked_since(asked.job_id, entry)",
                "is_of_job",
            ),
        ),
        ("test_no_earlier_answer_is_given_to_a_later_question",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "memories-not-compared",
        "the log is verified without what nodes remember of it",
        (
            Code(
                "vox_mesh.oplog.audits.log_verification:LogVerification._verify",
                "self._past.compare(self._remembered())",
                "self._past.compare(())",
            ),
        ),
        ("test_chains_that_were_all_cut_back_are_found_by_what_their_nodes_remember",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "unsigned-status",
        "a status claim is shown though the node that it names did not sign it",
        (
            Code(
                "vox_mesh.rhythm.claim_verifier:ClaimVerifier.are_genuine",
                "return [batch is not None and digest in known[batch] for batch, digest in claims]",
                "return [True for _ in claims]",
            ),
        ),
        ("test_no_status_is_shown_that_its_node_did_not_sign",),
        instrument=Instrument.ATTACKS,
    ),
)
