"""What the log promises: entries, chains and keys that were moved, deleted, swapped or forged are found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.support.oplog import tampering as at
from tests.support.oplog.tampering import (
    NO_ENTRY,
    NO_HASH_OF_IT,
    NOT_SIGNED_BY_AUTHOR,
    NOTE,
    VERDICTS,
    Found,
    TamperedLog,
    assert_found,
    stranger,
)
from vox_mesh.model.oplog.chain import ANCHOR, SEAL
from vox_mesh.model.oplog.verification import DESIGNATE

pytestmark = pytest.mark.asyncio(loop_scope="module")


# --- whole entries, chains and keys ---------------------------------------------------------------

Tampering = Callable[[TamperedLog], Awaitable[Found]]
CONTENTS: Final = ("op_id", "kind", "hlc", "causal_deps", "payload", "prev", "hash", "signature")


async def remove_key(scene: TamperedLog, chain: str) -> None:
    """Forget the keys of a chain."""
    sql = "DELETE FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3"
    await scene.run((sql, (chain,)))


async def an_entry_moved_to_another_chain(scene: TamperedLog) -> Found:
    await scene.set(scene.chain, at.LATE_NOTE, node_id="another")
    return Found(scene.chain, at.SECOND_SEAL, "entry 9 is missing", frozenset({"another"}))


async def the_first_entry_deleted(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, 1, 1)
    return Found(scene.chain, 2, "entry 1 is missing")


async def an_entry_between_deleted(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, at.ANSWERED, at.ANSWERED)
    return Found(scene.chain, at.LAST_NOTE, "entry 4 is missing")


async def an_entry_between_deleted_and_the_rest_numbered_anew(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, at.ANSWERED, at.ANSWERED)
    for seq in range(at.LAST_NOTE, at.OWN_ANCHOR + 1):
        await scene.set(scene.chain, seq, seq=seq - 1)
    return Found(scene.chain, at.ANSWERED, "it is not linked to the entry before it")


async def the_last_entry_deleted(scene: TamperedLog) -> Found:
    await scene.delete(scene.commands, at.COMMANDS_SEAL, at.COMMANDS_SEAL)
    return Found(scene.commands, 1, f"it ends here, but anchor .* of {scene.chain} recorded entry 2")


async def the_tail_cut_off_at_a_signature(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, at.LATE_NOTE, at.OWN_ANCHOR)
    return Found(
        scene.chain, at.FIRST_SEAL, f"it ends here, but anchor .* of {scene.commands} recorded entry 10"
    )


async def the_tail_cut_off_within_a_request(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, at.LAST_NOTE, at.OWN_ANCHOR)
    return Found(scene.chain, at.ANSWERED, "it ends here, but anchor .* recorded entry 10")


async def a_whole_chain_deleted(scene: TamperedLog) -> Found:
    await scene.delete(scene.chain, 1, at.OWN_ANCHOR)
    return Found(scene.chain, 0, "it ends here, but anchor .* recorded entry 10")


async def a_whole_chain_deleted_with_its_key(scene: TamperedLog) -> Found:
    await scene.delete(scene.commands, 1, at.COMMANDS_SEAL)
    await remove_key(scene, scene.commands)
    return Found(scene.commands, 0, "it ends here, but anchor .* recorded entry 2")


async def a_key_of_a_chain_that_is_gone(scene: TamperedLog) -> Found:
    await scene.set_key("gone", stranger().public)
    return Found("gone", None, "its entries are gone, but its key is known")


async def two_entries_swapped_in_their_contents(scene: TamperedLog) -> Found:
    await scene.swap(scene.chain, at.FIRST_NOTE, at.LAST_NOTE, *CONTENTS)
    return Found(scene.chain, at.FIRST_NOTE, "it is not linked to the entry before it")


async def two_entries_swapped_in_their_numbers(scene: TamperedLog) -> Found:
    await scene.swap(scene.chain, at.LAST_NOTE, at.DESIGNATED, "seq")
    return Found(scene.chain, at.LAST_NOTE, "it is not linked to the entry before it")


async def two_entries_swapped_in_the_order_of_commits(scene: TamperedLog) -> Found:
    await scene.swap(scene.chain, at.ANSWERED, at.LAST_NOTE, "id")
    return Found(scene.chain, at.LAST_NOTE, "it was committed before the entry before it")


async def two_payloads_swapped(scene: TamperedLog) -> Found:
    await scene.swap(scene.chain, at.FIRST_NOTE, at.ANSWERED, "payload")
    return Found(scene.chain, at.FIRST_NOTE, NO_HASH_OF_IT)


async def an_accepted_op_refused_with_a_reason(scene: TamperedLog) -> Found:
    await scene.set(scene.chain, at.LAST_NOTE, accepted=0, reason="not_today")
    return Found(scene.chain, at.FIRST_SEAL, VERDICTS)


async def a_signature_copied_to_an_unsigned_entry(scene: TamperedLog) -> Found:
    entries = await scene.entries(scene.chain)
    await scene.set(scene.chain, at.FIRST_NOTE, signature=entries[at.LAST_NOTE - 1].signature)
    return Found(scene.chain, at.FIRST_NOTE, NOT_SIGNED_BY_AUTHOR)


async def a_true_signature_added(scene: TamperedLog) -> Found:
    entry = (await scene.entries(scene.chain))[at.FIRST_NOTE - 1]
    await scene.set(scene.chain, at.FIRST_NOTE, signature=scene.signed(entry, scene.key).signature)
    return Found(scene.chain, at.FIRST_SEAL, VERDICTS)


async def a_chain_made_anew_with_another_key(scene: TamperedLog) -> Found:
    entries = await scene.entries(scene.chain)
    await scene.replace(scene.chain, scene.rechained(entries, at.LAST_NOTE, '{"text":"lost"}', stranger()))
    return Found(scene.chain, at.LAST_NOTE, NOT_SIGNED_BY_AUTHOR)


async def a_chain_made_anew_without_signatures(scene: TamperedLog) -> Found:
    entries = scene.rechained(await scene.entries(scene.chain), at.FIRST_NOTE, '{"text":"lost"}', stranger())
    unsigned = [entry._replace(signature=None) for entry in entries]
    await scene.replace(scene.chain, unsigned)
    return Found(scene.chain, at.DESIGNATED, "only the owner may author it, and it is not signed")


async def a_chain_made_anew_with_another_key_that_is_made_known(scene: TamperedLog) -> Found:
    key = stranger()
    again = scene.rechained(await scene.entries(scene.commands), 1, '{"heads":{}}', key)
    await scene.replace(scene.commands, again)
    await scene.set_key(scene.commands, key.public)
    return Found(scene.commands, at.COMMANDS_SEAL, f"anchor .* of {scene.chain} recorded another hash for it")


async def a_chain_made_anew_by_its_own_author(scene: TamperedLog) -> Found:
    again = scene.rechained(await scene.entries(scene.commands), 1, '{"heads":{}}', scene.key)
    await scene.replace(scene.commands, again)
    return Found(scene.commands, at.COMMANDS_SEAL, f"anchor .* of {scene.chain} recorded another hash for it")


async def the_key_of_a_chain_replaced(scene: TamperedLog) -> Found:
    await scene.set_key(scene.commands, stranger().public)
    return Found(scene.commands, at.ANCHOR, NOT_SIGNED_BY_AUTHOR)


async def the_key_of_a_chain_replaced_by_none(scene: TamperedLog) -> Found:
    await scene.set_key(scene.commands, "no key")
    return Found(scene.commands, at.ANCHOR, NOT_SIGNED_BY_AUTHOR)


async def the_key_of_a_chain_removed(scene: TamperedLog) -> Found:
    await remove_key(scene, scene.commands)
    return Found(scene.commands, at.ANCHOR, "no key is known for it")


async def the_key_of_a_chain_made_later(scene: TamperedLog) -> Found:
    public = scene.key.public
    await remove_key(scene, scene.chain)
    await scene.set_key(scene.chain, public, from_seq=3)
    return Found(scene.chain, 1, "no key was in force for it")


async def a_later_key_that_the_owner_never_accepted(scene: TamperedLog) -> Found:
    key = stranger()
    await scene.set_key(scene.chain, key.public, from_seq=50)
    return Found(scene.chain, 50, f"the owner never accepted the key {key.public}")


async def a_later_key_in_the_midst_of_a_request(scene: TamperedLog) -> Found:
    await scene.set_key(scene.chain, stranger().public, from_seq=at.ANSWERED)
    return Found(scene.chain, at.ANSWERED, "its key is a new one, and what was before it was not signed")


async def an_entry_with_a_later_key_that_the_owner_never_accepted(scene: TamperedLog) -> Found:
    key = stranger()
    forged = await scene.next_entry(scene.chain, NOTE.name, {})
    await scene.insert(scene.signed(forged, key))
    await scene.set_key(scene.chain, key.public, from_seq=forged.seq)
    return Found(scene.chain, forged.seq, f"the owner never accepted the key {key.public}")


async def the_key_of_the_owner_replaced(scene: TamperedLog) -> Found:
    await scene.set_owner(stranger().public)
    return Found(scene.chain, at.INITIALISED, "another owner than this is recorded")


async def the_owner_forgotten(scene: TamperedLog) -> Found:
    await scene.run(("DELETE FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2", ()))
    return Found(scene.chain, at.INITIALISED, "another owner than this is recorded")


# --- entries that no one authored -----------------------------------------------------------------


async def a_forged_entry_with_another_key(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {})
    await scene.insert(scene.signed(forged, stranger()))
    return Found(scene.chain, forged.seq, NOT_SIGNED_BY_AUTHOR)


async def a_forged_entry_with_a_copied_signature(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {})
    copied = (await scene.entries(scene.chain))[-1].signature
    await scene.insert(forged._replace(signature=copied))
    return Found(scene.chain, forged.seq, NOT_SIGNED_BY_AUTHOR)


async def a_forged_entry_without_a_signature(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {})
    await scene.insert(forged)
    return Found(scene.chain, forged.seq, "it ends with an entry that is not signed")


async def a_forged_entry_in_a_chain_that_nobody_knows(scene: TamperedLog) -> Found:
    await scene.insert(scene.signed(await scene.next_entry("unknown", NOTE.name, {}), stranger()))
    return Found("unknown", 1, "no key is known for it")


async def a_forged_entry_in_a_chain_with_a_name_of_bytes(scene: TamperedLog) -> Found:
    forged = await scene.next_entry("unknown", NOTE.name, {})
    await scene.insert(forged)
    sql = (
        "UPDATE agent_oplog SET node_id = X'00ff' WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3"
    )
    await scene.run((sql, ("unknown",)))
    return Found(b"\x00\xff", 1, NO_ENTRY)  # type: ignore[arg-type]


async def a_forged_entry_before_the_first(scene: TamperedLog) -> Found:
    forged = await scene.next_entry("", NOTE.name, {}, seq=-1)
    await scene.insert(scene.signed(forged, stranger()))
    return Found("", -1, "its number comes twice")


async def a_forged_seal(scene: TamperedLog) -> Found:
    await scene.set(scene.chain, at.LATE_NOTE, reason="changed")
    entries = await scene.entries(scene.chain)
    sealed = scene.rechained(entries, at.SECOND_SEAL, "", stranger())
    await scene.replace(scene.chain, sealed)
    return Found(scene.chain, at.SECOND_SEAL, NOT_SIGNED_BY_AUTHOR)


async def a_seal_of_its_author_that_is_not_true(scene: TamperedLog) -> Found:
    claim = {"from": at.SECOND_SEAL, "to": at.OWN_ANCHOR, "verdicts": "0" * 64}
    forged = await scene.next_entry(scene.chain, SEAL, claim)
    await scene.insert(scene.signed(forged, scene.key))
    return Found(scene.chain, forged.seq, VERDICTS)


async def a_forged_anchor(scene: TamperedLog) -> Found:
    heads = {scene.chain: [at.SECOND_SEAL, "0" * 64]}
    forged = await scene.next_entry(scene.commands, ANCHOR, {"heads": heads})
    await scene.insert(scene.signed(forged, stranger()))
    return Found(scene.commands, forged.seq, NOT_SIGNED_BY_AUTHOR, frozenset({scene.chain}))


async def a_forged_anchor_that_makes_no_sense(scene: TamperedLog) -> Found:
    heads = {scene.chain: ["eleven", []], scene.commands: [1.5, None], "unknown": [{}, {}]}
    forged = await scene.next_entry(scene.commands, ANCHOR, {"heads": heads})
    await scene.insert(scene.signed(forged, stranger()))
    return Found(scene.commands, forged.seq, NOT_SIGNED_BY_AUTHOR)


async def a_forged_word_of_the_owner(scene: TamperedLog) -> Found:
    key = stranger()
    forged = await scene.next_entry("intruder", DESIGNATE, {"node": "intruder"})
    await scene.insert(scene.signed(forged, key))
    await scene.set_key("intruder", key.public)
    return Found("intruder", 1, "only the owner may author it, and its author is not the owner")


# --- entries that their author should not have signed ---------------------------------------------


async def an_entry_in_another_form(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {}, payload='{"a": 1}')
    await scene.insert(scene.signed(forged, scene.key))
    return Found(scene.chain, forged.seq, "its payload is not canonical JSON")


async def an_entry_earlier_than_the_one_before(scene: TamperedLog) -> Found:
    earlier = (await scene.entries(scene.chain))[0].hlc.replace("-00000-", "-00009-")
    forged = await scene.next_entry(scene.chain, NOTE.name, {}, hlc=earlier)
    await scene.insert(scene.signed(forged, scene.key))
    return Found(scene.chain, forged.seq, "its time is not later than that of the entry before it")


async def an_entry_with_a_time_of_another(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {})
    await scene.insert(scene.signed(forged._replace(hlc=f"{forged.hlc}x"), scene.key))
    return Found(scene.chain, forged.seq, "its time is not one of its author")


async def an_entry_with_an_id_that_is_none(scene: TamperedLog) -> Found:
    forged = await scene.next_entry(scene.chain, NOTE.name, {}, op_id="one")
    await scene.insert(scene.signed(forged, scene.key))
    return Found(scene.chain, forged.seq, "its op id is no ULID")


TAMPERINGS: Final[tuple[Tampering, ...]] = (
    an_entry_moved_to_another_chain,
    the_first_entry_deleted,
    an_entry_between_deleted,
    an_entry_between_deleted_and_the_rest_numbered_anew,
    the_last_entry_deleted,
    the_tail_cut_off_at_a_signature,
    the_tail_cut_off_within_a_request,
    a_whole_chain_deleted,
    a_whole_chain_deleted_with_its_key,
    a_key_of_a_chain_that_is_gone,
    two_entries_swapped_in_their_contents,
    two_entries_swapped_in_their_numbers,
    two_entries_swapped_in_the_order_of_commits,
    two_payloads_swapped,
    an_accepted_op_refused_with_a_reason,
    a_signature_copied_to_an_unsigned_entry,
    a_true_signature_added,
    a_chain_made_anew_with_another_key,
    a_chain_made_anew_without_signatures,
    a_chain_made_anew_with_another_key_that_is_made_known,
    a_chain_made_anew_by_its_own_author,
    the_key_of_a_chain_replaced,
    the_key_of_a_chain_replaced_by_none,
    the_key_of_a_chain_removed,
    the_key_of_a_chain_made_later,
    a_later_key_that_the_owner_never_accepted,
    a_later_key_in_the_midst_of_a_request,
    an_entry_with_a_later_key_that_the_owner_never_accepted,
    the_key_of_the_owner_replaced,
    the_owner_forgotten,
    a_forged_entry_with_another_key,
    a_forged_entry_with_a_copied_signature,
    a_forged_entry_without_a_signature,
    a_forged_entry_in_a_chain_that_nobody_knows,
    a_forged_entry_in_a_chain_with_a_name_of_bytes,
    a_forged_entry_before_the_first,
    a_forged_seal,
    a_seal_of_its_author_that_is_not_true,
    a_forged_anchor,
    a_forged_anchor_that_makes_no_sense,
    a_forged_word_of_the_owner,
    an_entry_in_another_form,
    an_entry_earlier_than_the_one_before,
    an_entry_with_a_time_of_another,
    an_entry_with_an_id_that_is_none,
)


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda each: each.__name__)
async def test_what_was_done_to_entries_chains_or_keys_is_found(
    scene: TamperedLog, tampering: Tampering
) -> None:
    await assert_found(scene, await tampering(scene))
