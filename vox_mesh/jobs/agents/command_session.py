"""An agent as a plain command: the prompt on its input, and its output as the last message."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from vox_mesh.jobs.agents.agent_process import AgentLaunch, AgentProcess
from vox_mesh.jobs.agents.outcome import AgentOutcome, LastMessage
from vox_mesh.jobs.agents.transcript import Transcript
from vox_mesh.jobs.exec.process_group import ProcessGroup

_EXITED: Final = "exited"
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


@dataclass
class CommandSession:
    """One attempt of an agent that reads its prompt from its input, and ends with exit code 0."""

    launch: AgentLaunch
    prompt: str
    transcript: Transcript
    on_output: Callable[[str], None]
    _message: LastMessage = field(default_factory=LastMessage, init=False)

    async def run(self, on_group: Callable[[ProcessGroup], None]) -> AgentOutcome:
        """Run the agent to its end. Raises `AgentFailed` unless it ends with exit code 0."""
        decoder = _DECODER(errors="replace")

        async def consume(piece: bytes) -> None:
            text = decoder.decode(piece)
            self._message.add(text)
            self.transcript.add("agent", text=text)
            self.on_output(text)

        self.transcript.add("worker", prompt=self.prompt)
        async with AgentProcess.running(self.launch, consume, on_group) as process:
            writing = asyncio.create_task(self._write_prompt(process.writer), name="vox-mesh-prompt")
            try:
                code = await process.ended()
                await process.read_rest()
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
        if code != 0:
            raise process.failure(code)
        return AgentOutcome(self._message.text, _EXITED)

    async def _write_prompt(self, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # it need not read its input
            writer.write(self.prompt.encode())
            await writer.drain()
            writer.close()
