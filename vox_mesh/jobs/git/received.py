"""Received manifests and results: what a repository says about jobs, and what of it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.jobs.git.repository import GitRepository, ObjectInfo
from vox_mesh.jobs.git.worker_keys import WorkerKeys
from vox_mesh.jobs.proof.verify import MAX_BODIES
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.documents.documents import MAX_BYTES, short
from vox_mesh.model.jobs.git_refs import MANIFEST_FILE, PROOF_FILE, artifact_paths
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import Output, Proof, faults_of, hash_of, read_proof

_MAX_COMMIT_BYTES: Final = 2**16
_MAX_PROOF_BYTES: Final = 2**20

Faulty = str
"""Why something was not received."""


class ReceivedResult(NamedTuple):
    """A result whose proof holds, with the contents of outputs that came with it, by hash."""

    proof: Proof
    bodies: Mapping[str, bytes]

    @property
    def outputs(self) -> list[Output]:
        """Return the outputs whose contents came with the result."""
        outputs = [Output(**each) for each in self.proof.envelope["outputs"]]
        return [each for each in outputs if each.hash in self.bodies]


class RepositoryReader:
    """Reads jobs from a repository. Sizes are checked before contents are read."""

    def __init__(self, repository: GitRepository, worker_keys: WorkerKeys) -> None:
        self._repository = repository
        self._keys = worker_keys

    async def manifests(self, commits: Mapping[str, str]) -> dict[str, Manifest | Faulty]:
        """Return by job the manifest in its commit."""
        names = {job_id: f"{commit}:{MANIFEST_FILE}" for job_id, commit in commits.items()}
        texts = await self._read(names, "blob", MAX_BYTES)
        return {
            job_id: text if isinstance(text, str) else _manifest(job_id, text)
            for job_id, text in texts.items()
        }

    async def proof_texts(self, commits: Mapping[str, str]) -> dict[str, bytes | Faulty]:
        """Return by job the proof in the commit of its result, as text."""
        names = {job_id: f"{commit}:{PROOF_FILE}" for job_id, commit in commits.items()}
        return await self._read(names, "blob", _MAX_PROOF_BYTES)

    async def results(
        self, commits: Mapping[str, str], proof_texts: Mapping[str, bytes]
    ) -> dict[str, ReceivedResult | Faulty]:
        """Return by job its result, if the proof holds and a worker of the mesh has signed it."""
        wanted = {job_id: commits[job_id] for job_id in proof_texts}
        messages = await self._read(wanted, "commit", _MAX_COMMIT_BYTES)
        results: dict[str, ReceivedResult | Faulty] = {}
        for job_id, text in proof_texts.items():
            message = messages[job_id]
            proof = message if isinstance(message, str) else await self._proof(job_id, text, message)
            results[job_id] = (
                proof if isinstance(proof, str) else await self._with_bodies(commits[job_id], proof)
            )
        return results

    async def _proof(self, job_id: str, text: bytes, commit: bytes) -> Proof | Faulty:
        try:
            proof = read_proof(text)
        except BadValue as error:
            return str(error)
        faults = faults_of(proof, job_id=job_id, trailers=_trailers(commit))
        if faults:
            return "; ".join(faults)
        node_id, worker_id = proof.envelope["node_id"], proof.envelope["worker_id"]
        key = await self._keys.in_force(node_id)
        if key is None:
            return f"the worker {short(node_id)} is not known to this mesh"
        if key != worker_id:
            return f"it is signed with {worker_id}, which is not the key of the worker {short(node_id)}"
        return proof

    async def _with_bodies(self, commit: str, proof: Proof) -> ReceivedResult | Faulty:
        outputs = proof.envelope["outputs"]
        paths = [f"{commit}:{path}" for path in artifact_paths(outputs)]
        if not paths:
            return ReceivedResult(proof, {})
        found: list[tuple[str, dict[str, Any]]] = []
        size = 0
        infos = await self._repository.check(paths)
        for path, output, info in zip(paths, outputs, infos, strict=True):
            if info is None:
                continue  # it was too large, or not there when the job was exported
            if info != ObjectInfo("blob", output["size"]):
                return f"the content of {output['name']} is not what the proof says"
            size += info.size
            if size > MAX_BODIES:
                return f"its outputs take more than {MAX_BODIES} bytes"
            found.append((path, output))
        bodies = await self._repository.read([path for path, _ in found], size)
        for (_, output), body in zip(found, bodies, strict=True):
            if hash_of(body) != output["hash"]:
                return f"the content of {output['name']} is not what the proof says: it is {hash_of(body)}"
        return ReceivedResult(
            proof, {output["hash"]: body for (_, output), body in zip(found, bodies, strict=True)}
        )

    async def _read(self, names: Mapping[str, str], kind: str, max_bytes: int) -> dict[str, bytes | Faulty]:
        """Return contents by job, or why they can't be read."""
        found: dict[str, bytes | Faulty] = {}
        readable: dict[str, str] = {}
        size = 0
        for (job_id, name), info in zip(
            names.items(), await self._repository.check([*names.values()]), strict=True
        ):
            file = name.partition(":")[2] or "commit"
            if info is None or info.type != kind:
                found[job_id] = f"there is no {file} in it"
            elif info.size > max_bytes:
                found[job_id] = f"its {file} has {info.size} bytes; at most {max_bytes} are read"
            else:
                readable[job_id] = name
                size += info.size
        contents = await self._repository.read([*readable.values()], size)
        return found | dict(zip(readable, contents, strict=True))


def _manifest(job_id: str, text: bytes) -> Manifest | Faulty:
    try:
        manifest = Manifest.of(**_fields(text))
        actual = manifest.content_id
    except BadManifest as error:
        return "; ".join(error.faults)
    except (BadValue, TypeError) as error:
        return f"it can't be read: {error}"
    return manifest if actual == job_id else f"its manifest is that of job {actual}"


def _fields(text: bytes) -> dict[str, Any]:
    """Return the fields of a manifest in JSON, as exports write it, or in YAML, as people do."""
    try:
        value = parse(text.decode())
    except (BadValue, UnicodeDecodeError):
        from vox_mesh.model.documents.yaml_reader import read_documents  # imported late: loads a parser

        documents: Sequence[Any] = read_documents(text, MANIFEST_FILE)
        faults = [str(fault) for document in documents for fault in document.faults]
        if faults or len(documents) != 1:
            raise BadManifest(faults or [f"it has {len(documents)} documents, and not one"]) from None
        value = documents[0].value
    if not isinstance(value, dict):
        raise BadManifest(["a manifest is a map"])
    return value


def _trailers(commit: bytes) -> dict[str, str]:
    """Return the trailers of a commit: the lines of its last paragraph."""
    paragraph = commit.decode(errors="replace").rstrip("\n").rpartition("\n\n")[2]
    pairs = (line.partition(": ") for line in paragraph.split("\n"))
    return {name: value for name, _, value in pairs}
