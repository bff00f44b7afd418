// Installed by `vox-mesh hooks install opencode`; `vox-mesh hooks remove opencode` removes it.
import { spawn } from "node:child_process"

const COMMAND = ""
const STRICT = false
const DEADLINE_MS = 10000
const MAX_BYTES = 262144

// Asks the script. It answers by JSON within its own deadline; anything else is no answer.
function ask(document) {
  return new Promise((resolve) => {
    const child = spawn("/bin/sh", ["-c", COMMAND], { stdio: ["pipe", "pipe", "ignore"] })
    const chunks = []
    let size = 0
    const timer = setTimeout(() => child.kill("SIGKILL"), DEADLINE_MS)
    child.on("error", () => finish(null))
    child.stdin.on("error", () => {})
    child.stdout.on("data", (chunk) => {
      size += chunk.length
      if (size > MAX_BYTES) child.kill("SIGKILL")
      else chunks.push(chunk)
    })
    child.on("close", (code) => finish(code === 0 ? Buffer.concat(chunks).toString("utf8") : null))
    child.stdin.end(JSON.stringify(document))

    function finish(text) {
      clearTimeout(timer)
      try {
        const answer = JSON.parse(text)
        resolve(answer && typeof answer === "object" ? answer : null)
      } catch {
        resolve(null)
      }
    }
  })
}

export const VoxMesh = async ({ client, directory }) => {
  const pending = new Map() // context that waits for the next message of a session
  const reminded = new Set() // sessions that were kept from stopping once

  async function say(note) {
    if (!note) return
    try {
      await client.app.log({ body: { service: "vox-mesh", level: "warn", message: note } })
    } catch {
      // a note is not worth an error
    }
  }

  async function handle(hook, values) {
    const answer = await ask({ hook, directory, ...values })
    await say(answer ? answer.note : "vox-mesh: the hook did not answer, locks are not checked")
    return answer
  }

  return {
    "tool.execute.before": async (input, output) => {
      const answer = await handle("tool.execute.before", { input, output })
      if (!answer && STRICT) throw new Error("vox-mesh: locks could not be checked, and the hook is strict")
      if (answer && answer.deny) throw new Error(answer.deny)
    },
    "tool.execute.after": async (input, output) => {
      const answer = await handle("tool.execute.after", { input })
      if (answer && answer.context && typeof output.output === "string") output.output += `\n\n${answer.context}`
    },
    "chat.message": async (input, output) => {
      const answer = await handle("chat.message", { input })
      const context = [pending.get(input.sessionID), answer && answer.context].filter(Boolean).join("\n\n")
      const part = output.parts.find((each) => each.type === "text")
      if (!context || !part) return
      pending.delete(input.sessionID)
      part.text += `\n\n${context}`
    },
    event: async ({ event }) => {
      const session = event.properties?.sessionID ?? event.properties?.info?.id
      if (event.type === "session.created" || event.type === "session.compacted") {
        const answer = await handle(event.type, { event })
        if (answer && answer.context && session) pending.set(session, answer.context)
      } else if (event.type === "session.idle") {
        const answer = await handle(event.type, { event, is_reminded: reminded.delete(session) })
        if (!answer || !answer.stay || !session) return
        reminded.add(session)
        await client.session.prompt({ path: { id: session }, body: { parts: [{ type: "text", text: answer.stay }] } })
      } else if (event.type === "session.deleted") {
        pending.delete(session)
        reminded.delete(session)
        await handle(event.type, { event })
      }
    },
  }
}
