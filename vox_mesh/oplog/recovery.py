"""Recovery: pass the ownership of the mesh on, and replace the recovery key."""

from __future__ import annotations

from typing import Final

from vox_mesh.errors import BadValue, KeyRefused, NotKnown, Refused
from vox_mesh.model.base.keys import SigningKey, is_signed
from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.model.oplog.chain import COMMANDS, LogEntry
from vox_mesh.model.oplog.op_names import OFFER
from vox_mesh.model.oplog.recovery_key import RecoveryKey
from vox_mesh.model.oplog.succession import Succession, Transfer, acts_to_keep
from vox_mesh.model.oplog.verification import OWNER_ONLY, READ_ERRORS, TRANSFER
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import EntryFilter, Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store

_SQL: Final = named("roles")
_CRONS: Final = named("crons")
_ADOPT_CRONS: Final = "AdoptCrons"
_PAGE: Final = 200
_MAX_OFFERS: Final = 100


class Recovery:
    """Write the steps of the succession. Each has a new recovery key: the old one is used up by it."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        ownership: Ownership,
        trusted_keys: TrustedKeys,
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._ownership = ownership
        self._trusted_keys = trusted_keys
        self._pages = Pages(store)

    async def replace_key(self, new: RecoveryKey) -> Outcome:
        """Replace the recovery key; only the owner may."""
        return await self._step(await self._own(), self._writer.identity.key, new)

    async def offer(self, node_id: str) -> Outcome:
        """Offer the ownership to another node; only the owner may. That node becomes the owner by `accept`.

        What the owner does after the offer does not count once it is accepted. A new recovery key withdraws
        the offer.
        """
        if not node_id.strip():
            raise BadValue(
                f"node must be the name of a node, got {node_id!r}",
                hint="run `vox-mesh nodes --all` to see the names",
            )
        owners, author = await self._own(), self._writer.identity
        if node_id == author.node_id:
            raise BadValue(f"ownership not offered: {node_id} is the owner", hint="name another node")
        keys = (await self._trusted_keys.of_node(node_id, fresh=True)).current
        if len(keys) != 1 or not self._trusted_keys.is_settled(node_id):  # a key that is only recorded
            raise NotKnown(
                f"ownership not offered: node {node_id} has signed nothing yet",
                hint="run `vox-mesh nodes --all` to see the names; start the node, or run a command there",
            )
        transfer = await self._transfer(owners, node_id, next(iter(keys)), None)
        proof = author.key.sign(transfer.signed_text(self._store.writer_id.scope_id))
        return await self._store.write(Script(op=Op(OFFER, transfer.payload(proof), signed=True)))

    async def accept(self) -> Owner:
        """Make this node the owner, as the owner has offered. The mesh then has no recovery key."""
        owners, author = await self._owners(), self._writer.identity
        if owners.may_act(author.chain, author.key.public):
            raise BadValue(
                f"ownership not accepted: {author.node_id} is the owner already",
                hint="run this on the machine of the node that it was offered to",
            )
        for entry in await self._pages.newest(_MAX_OFFERS, EntryFilter(kind=OFFER)):
            if self._is_for_us(entry, owners):
                op = await self._write(owners, entry.payload)
                return Owner(author.node_id, author.key.public, op.key)
        raise NotKnown(
            f"ownership not accepted: {owners.owner.node_id} has not offered it to {author.node_id}",
            hint=f"run `vox-mesh roles transfer-ownership {author.node_id}` there first",
        )

    def _is_for_us(self, entry: LogEntry, owners: Succession) -> bool:
        """Return whether the present owner has offered the next step to this node."""
        author = self._writer.identity
        try:
            transfer, proof = Transfer.read(entry.payload)
            text = transfer.signed_text(self._store.writer_id.scope_id)
            own = (owners.links[-1], author.node_id, author.key.public)
            return transfer[:3] == own and is_signed(text, proof, owners.key or "")
        except READ_ERRORS:
            return False

    async def _own(self) -> Succession:
        owners, author = await self._owners(), self._writer.identity
        if not owners.may_act(author.chain, author.key.public):
            raise _refused(
                "not_the_owner",
                f"the owner of the mesh is {owners.owner.node_id}: run this there, with its key",
            )
        return owners

    async def recover(self, given: RecoveryKey, new: RecoveryKey) -> Owner:
        """Make this node the owner, by the recovery key; the acts of the owner before stay in force."""
        owners, author = await self._owners(), self._writer.identity
        if owners.key is None:
            raise _refused(
                "succession_contested",
                "two nodes claim to succeed the owner: set VOX_MESH_OWNER_KEY to the key of the right one",
            )
        if author.key.public == owners.key:
            raise BadValue(
                "ownership not recovered: this node is the owner of the mesh",
                hint="run `vox-mesh roles recovery-key` to replace the recovery key",
            )
        proof = given.signing_key(owners.key)
        if owners.recovery_key is None:
            raise NotKnown(
                "ownership not recovered: the mesh has no recovery key",
                hint="put the owner's key.pem back: only its key can make one",
            )
        if proof.public != owners.recovery_key:
            raise BadValue(
                f"recovery key is not the one in force for this mesh, whose owner is {owners.owner.node_id}",
                hint="look for a newer one: a recovery, and `vox-mesh roles recovery-key`, replace it",
            )
        op = await self._step(owners, proof, new)
        return Owner(author.node_id, author.key.public, op.key)

    async def _owners(self) -> Succession:
        self._clock.refuse_if_off()
        found = await self._ownership.succession()
        if found is None:
            raise NotKnown("owner not found: no node has opened the mesh", hint="run `vox-mesh up`")
        return found

    async def _step(self, owners: Succession, proof: SigningKey, new: RecoveryKey) -> Outcome:
        """Write the next step. It is refused by no guard: a refused entry would be as authentic."""
        author = self._writer.identity
        recovery = new.signing_key(author.key.public).public
        transfer = await self._transfer(owners, author.node_id, author.key.public, recovery)
        signature = proof.sign(transfer.signed_text(self._store.writer_id.scope_id))
        return await self._write(owners, transfer.payload(signature))

    async def _transfer(
        self, owners: Succession, node_id: str, public_key: str, recovery_key: str | None
    ) -> Transfer:
        acts = [] if public_key == owners.key else acts_to_keep(await self._acts(owners))
        since = await self._next_entries(node_id)
        return Transfer(owners.links[-1], node_id, public_key, recovery_key, since, acts)

    async def _write(self, owners: Succession, payload: str) -> Outcome:
        author, op_id = self._writer.identity, new_key()
        key = author.key.public
        self._clock.receive(owners.tenures[-1].hlc)  # the step must be later
        statements = []
        if key != owners.key:
            own = (author.node_id, key, op_id)
            statements.append(Statement(_SQL["become_owner"], (*self._store.mesh_id, *own)))
        op = Op(TRANSFER, payload, signed=True)
        self._writer.is_recovering = True
        try:
            written = await self._store.write(Script(*statements, key=op_id, op=op))
        except KeyRefused as error:  # the lost node had the same name
            error.hint = (
                "set VOX_MESH_NODE_ID to a new name and recover; `vox-mesh nodes rekey` frees the old one"
            )
            raise
        await self._ownership.succession()  # from now on it is known here, whatever becomes of the row
        return written

    async def _next_entries(self, node_id: str) -> dict[str, int]:
        chains = (node_id, node_id + COMMANDS)
        rows = await self._store.read(_SQL["ends_of"], (*self._store.mesh_id, *chains), fresh=True)
        return {chain: end + 1 for chain, end in zip(chains, rows[0], strict=True)}

    async def _acts(self, owners: Succession) -> list[LogEntry]:
        """Return all acts of the present owner."""
        found: list[LogEntry] = []
        for kind in sorted(OWNER_ONLY):
            found += [
                entry async for entry in self._pages.of_kind(kind, fresh=True) if owners.is_present_act(entry)
            ]
        for ops in (self._pages.about_grants(), self._pages.about_keys()):
            found += [each async for each in ops if owners.is_present_act(each)]
        found += [each async for each in self._pages.deletions() if owners.is_present_act(each)]
        time = ""
        while rows := await self._store.read(_CRONS["ops"], (*self._store.mesh_id, time, _PAGE), fresh=True):
            entries = map(LogEntry._make, rows)
            found += [each for each in entries if each.kind == _ADOPT_CRONS and owners.is_present_act(each)]
            time = rows[-1]["hlc"]
        return found


def _refused(reason: str, hint: str) -> Refused:
    error = Refused(reason, statement=0)
    error.hint = hint
    return error
