"""An agent that ignores denials: `python -m proof.editing.rogue SPEC`.

It asks the hook, edits the file whatever the answer, never locks anything, and tries to commit.
"""

from __future__ import annotations

import asyncio
import random

from proof.chaos.protocol import orders, report
from proof.editing.hands import Hands
from proof.editing.spec import FILES, OVER, UP, AgentSpec


async def _work(spec: AgentSpec, is_over: asyncio.Event) -> None:
    hands, rng = Hands(spec), random.Random(f"{spec.seed} {spec.who}")
    while not is_over.is_set():
        path = rng.choice(FILES)
        await hands.ask_hook(path)
        await hands.edit(path, allowed=False)
        await hands.commit(path)
        await hands.restore()
        await asyncio.sleep(rng.uniform(0, 8 * spec.rest_s))


async def main() -> None:
    """Run until ordered to leave."""
    is_over = asyncio.Event()
    report(UP)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(_work(AgentSpec.from_arguments(), is_over))
        async for order in orders():
            match order["do"]:
                case "over":
                    is_over.set()
                    await working
                    report(OVER)
                case "leave":
                    break


if __name__ == "__main__":
    asyncio.run(main())
