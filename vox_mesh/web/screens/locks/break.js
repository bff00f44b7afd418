/** Breaking a lock, with a reason. */
import { html } from "../../vendor.js";
import { send } from "../../app/api.js";
import { ask } from "../../parts/dialog.js";
import { Text } from "../../parts/text.js";
import { toast } from "../../parts/toast.js";

/** Ask for the reason, and break a lock. `null`: the person does not want it.
 * @param {{lock_key: string, holder_agent: string}} hold */
export async function breakLock({ lock_key: key, holder_agent: agent }) {
  return ask({
    title: "Break this lock?",
    text: html`<p><code><${Text} text=${key} max=${300} /></code> is held by <strong><${Text} text=${agent} max=${100} /></strong>.</p>
      <p class="quiet">All of its keys become free. Its holder learns of it with its next renewal, and writes with its token are rejected.</p>`,
    fields: [{ name: "reason", label: "Reason", required: true, hint: "The op log keeps it, with your name." }],
    action: "Break the lock",
    isDanger: true,
    run: async ({ reason }) => {
      const { broken } = await send("POST", "/v1/locks/break", { lock_key: key, reason });
      toast(broken.length > 1 ? `Broke ${broken.length} locks.` : "Broke the lock.");
    },
  });
}
