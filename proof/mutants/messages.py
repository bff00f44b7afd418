"""Bugs in messages."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql

_HEAD: Final = "AND (expires_ms IS NULL OR expires_ms > clock.now OR ("
_NOT_GIVEN_BACK: Final = "AND coalesce(not_before_ms, 0) <= clock.now "

MESSAGE_PLANTS: Final = (
    PlantedBug(
        "acked-by-anyone",
        "a message is acknowledged by a consumer that does not hold it",
        (
            Sql(
                "messages",
                "ack",
                "AND (message_uuid, claim_owner) IN ( "
                "SELECT value ->> 'message_uuid', value ->> 'claim_owner' FROM json_each(?1))",
                "",
            ),
            Sql("messages", "ack_one", "AND claim_owner = ?8", "AND ?8 = ?8"),
        ),
        ("acked-by-holder",),
        ("messages",),
    ),
    PlantedBug(
        "acked-too-late",
        "a message is acknowledged under a claim that is over",
        (
            Sql("messages", "ack", "ended_ms IS NULL AND claim_until_ms > NOW_MS", "ended_ms IS NULL"),
            Sql("messages", "ack_one", "ended_ms IS NULL AND claim_until_ms > NOW_MS", "ended_ms IS NULL"),
        ),
        ("acked-by-holder", "messages-in-order"),
        ("messages",),
    ),
    PlantedBug(
        "handed-out-expired",
        "a message is handed out after its expiry",
        (
            Sql(
                "messages",
                "claim",
                "AND ended_ms IS NULL AND hlc >= h.hlc AND (h.barrier IS NULL OR hlc < h.barrier) "
                "AND (expires_ms IS NULL OR expires_ms > h.now)",
                "AND ended_ms IS NULL AND hlc >= h.hlc AND (h.barrier IS NULL OR hlc < h.barrier)",
            ),
            Sql("messages", "claim_one", "AND (expires_ms IS NULL OR expires_ms > NOW_MS)", ""),
            Sql("messages", "expire", "AND expires_ms <= NOW_MS", "AND expires_ms <= NOW_MS - 60000"),
        ),
        ("never-after-expiry",),
        ("messages",),
    ),
    PlantedBug(
        "role-inbox-leased",
        "the only recipient of a role keeps its inbox after it was killed",
        (
            Sql(
                "messages",
                "lease_if_alone",
                "AND NOT (receiver_agent >= 'role:' AND receiver_agent < 'role;')",
                "",
            ),
        ),
        ("test_a_message_of_a_crashed_recipient_goes_to_another_node_when_its_claim_ends",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-lost-with-claim",
        "an ack that was sent with a claim is forgotten when the claim is interrupted",
        (
            Code(
                "vox_mesh.messages.claims:Claims._write_after_acks",
                "self.acks.put_back(acks)",
                "self.acks.settle(acks, AckVerdicts({}))",
            ),
        ),
        ("test_an_ack_that_was_sent_with_an_interrupted_claim_is_sent_again",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "queued-ack-dropped",
        "one of several queued acks is not written, and is reported as recorded",
        (
            Code(
                "vox_mesh.messages.ack_queue:AckQueue.take",
                "taken, self._queued = self._queued, []",
                "dropped, taken, self._queued = self._queued[-1:], self._queued[:-1], []\n"
                "    self.settle(dropped, AckVerdicts({}))",
            ),
        ),
        ("messages-acked", "acked-by-holder"),
        ("messages",),
    ),
    PlantedBug(
        "ack-failure-forgotten",
        "a queued ack that fails is not raised by the loop that handed out its message",
        (
            Code(
                "vox_mesh.messages.ack_queue:AckQueue.raise_failure",
                "if self._failures and (error := self._failures.pop(consumer, None)) is not None:",
                "if self._failures.pop(consumer, None) is self:",
            ),
        ),
        ("test_an_ack_that_failed_is_raised_by_its_loop",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-cancelled-for-room",
        "a message whose ack is cancelled while it waits for room is neither acknowledged nor released",
        (
            Code(
                "vox_mesh.messages.settlement:Settlement.ack_in_loops",
                "await queue.wait_for_room()",
                "for each in messages:\n"
                "            self._loop_of(each).mark_settled(each)\n"
                "        await queue.wait_for_room()",
            ),
        ),
        ("test_a_message_whose_ack_was_cancelled_while_it_waited_for_room_is_released",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-writer-not-restarted",
        "acks that are queued when their writer is cancelled are never written",
        (
            Code(
                "vox_mesh.messages.ack_queue:AckQueue._end_writing",
                "if self._queued:",
                "if self._queued is None:",
            ),
        ),
        ("test_acks_whose_writer_was_cancelled_are_written_nevertheless",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-failure-dropped",
        "a blocking loop that is left by `break` forgets the failure of its ack",
        (
            Code(
                "vox_mesh.messages.receive_loops:ReceiveLoop.aclose_dropped",
                "is_dropped=True",
                "is_dropped=False",
            ),
        ),
        ("test_a_blocking_loop_that_is_left_leaves_the_failure_of_an_ack_to_waiting_for_it",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-queued-in-close",
        "an ack is queued while the mesh closes, and does not say whether its message was released before",
        (
            Code(
                "vox_mesh.messages.settlement:Settlement.close",
                "self._is_closing = True",
                "self._is_closing = False",
            ),
        ),
        ("test_an_ack_while_the_mesh_closes_is_waited_for",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-failure-lost-in-close",
        "a loop that ends because the mesh closes does not raise the failure of its ack",
        (
            Code(
                "vox_mesh.messages.consumer:Consumer.next",
                "self._claims.acks.raise_failure(self)\n    raise StoreClosed",
                "raise StoreClosed",
            ),
        ),
        ("test_a_loop_that_ends_with_the_mesh_raises_the_failure_of_its_ack",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "dropped-loop-waits",
        "a blocking loop that the garbage collector drops waits for its end, whatever locks its thread holds",
        (
            Code(
                "vox_mesh.sync.loop_thread:LoopThread._finish",
                "stream.is_dropped or not self.is_usable",
                "not self.is_usable",
            ),
        ),
        ("test_a_blocking_loop_that_is_collected_under_a_lock_of_the_loop_does_not_wait",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "ack-failures-full",
        "while old failures of acks are kept, new ones are forgotten",
        (
            Code(
                "vox_mesh.messages.ack_queue:AckQueue._keep_failure",
                "ended = next((each for each in self._failures if not each.is_open), None)",
                "return",
            ),
        ),
        ("test_an_ack_that_fails_is_raised_however_many_failures_of_ended_loops_are_kept",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "gives-up-another",
        "of two tasks that share a loop, a cancelled one releases the message of the other",
        (
            Code(
                "vox_mesh.messages.receive_loops:ReceiveLoops.end_handler",
                "message = consumer.handled.pop(handler, None)",
                "message = [*consumer.handled.values()][-1]",
            ),
        ),
        ("test_of_two_tasks_that_share_a_loop_the_cancelled_one_gives_up_its_own_message",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "failed-send-as-sent",
        "the error about messages that were sent together counts failed ones as sent",
        (
            Code(
                "vox_mesh.messages.bulk_sending:_not_all_sent",
                "return NotAllSent(sent, failed)",
                "return NotAllSent([*sent, *(draft for draft, _ in failed[1:])], failed[:1])",
            ),
        ),
        ("test_an_error_says_which_messages_were_sent_and_which_failed",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "timeout-of-a-portion",
        "each portion of messages that are sent together has the whole timeout",
        (
            Code(
                "vox_mesh.messages.bulk_sending:BulkSender.send",
                "outcomes += await self._send_together(drafts[first : first + _TOGETHER], deadline)",
                "outcomes += await self._send_together(\n"
                "            drafts[first : first + _TOGETHER],\n"
                "            None if deadline is None else self._monotonic() + 10,\n"
                "        )",
            ),
        ),
        ("test_the_timeout_is_that_of_all_messages_together",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "given-back-overtaken",
        "a message is handed out before an earlier one that waits for its retry",
        (
            Sql("messages", "claim", "AND (h.barrier IS NULL OR hlc < h.barrier)", ""),
            *(Sql("messages", name, _HEAD, _NOT_GIVEN_BACK + _HEAD) for name in ("claim", "claimable")),
        ),
        ("messages-in-order",),
        ("messages",),
    ),
    PlantedBug(
        "ordered-in-parallel",
        "ordered messages of one sender to a role are handed out in parallel",
        tuple(
            Sql("messages", name, "LIMIT 512) WHERE NOT is_ordered", "LIMIT 512) WHERE true")
            for name in ("claim", "claimable")
        ),
        ("messages-in-order",),
        ("messages",),
    ),
    PlantedBug(
        "dropped-when-handed-out",
        "a message is acknowledged when it is handed out",
        (
            Sql("messages", "claim", "state = 'delivered',", "state = 'acked', ended_ms = chosen.now,"),
            Sql("messages", "claim_one", "state = 'delivered',", "state = 'acked', ended_ms = NOW_MS,"),
        ),
        ("messages-acked", "acked-by-holder"),
        ("messages",),
    ),
    PlantedBug(
        "acked-in-vain",
        "an acknowledgement without effect is reported as successful",
        (
            Code(
                "vox_mesh.messages.claims:Claims._judge",
                "elif verdict.rows or verdict.spooled:",
                "elif verdict.rows is not None:",
            ),
        ),
        ("acked-once", "acked-by-holder", "messages-acked"),
        ("messages",),
    ),
    PlantedBug(
        "relayed-without-lease",
        "a node that cannot reach the database hands out relayed messages without a lease of the inbox",
        (
            Code(
                "vox_mesh.messages.consumer:Consumer._take_relayed",
                "until = {name: until for name in self.names "
                "if (until := self._leases.until(name)) is not None}",
                "until = dict.fromkeys(self.names, self._monotonic() + self._lease_s)",
            ),
        ),
        ("handed-to-one", "acked-once", "acked-stays"),
        ("consumers",),
        faults=("unreachable",),
    ),
    PlantedBug(
        "unreadable-stops-claim",
        "a message that can't be passed on is neither handed out nor a dead letter, and fails every claim",
        (
            Code(
                "vox_mesh.messages.claims:Claims._verify_rows",
                "messages = _count_attempts(in_turn([Message.read(row[0]) for row in rows]))",
                "messages = _count_attempts(in_turn([Message.read(row[0]) for row in rows]))\n"
                "    if any(each.fault for each in messages):\n"
                "        raise BadValue('unreadable')",
            ),
        ),
        ("unreadable-not-handed-out",),
        ("messages",),
    ),
    PlantedBug(
        "deep-payload-handed-out",
        "the depth of a stored payload is not checked, and it is handed out",
        (
            Code(
                "vox_mesh.model.base.json_text:read_stored",
                "check_depth(value, text, MAX_STORED_DEPTH)",
                "pass",
            ),
        ),
        ("unreadable-not-handed-out",),
        ("messages",),
    ),
    PlantedBug(
        "batch-stranded",
        "messages claimed in a batch with a lost one stay claimed, and are not handed out",
        (
            Code(
                "vox_mesh.messages.consumer:Consumer.release_lost",
                "await self._release(self.mark_rejected(message))",
                "self.mark_rejected(message)",
            ),
        ),
        ("handed-in-time",),
        ("consumers",),
        faults=("unreachable",),
    ),
)
