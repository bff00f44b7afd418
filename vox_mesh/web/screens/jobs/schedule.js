/** The form that schedules a job. */
import { send } from "../../app/api.js";
import { keyed } from "../../app/once.js";
import { go, to } from "../../app/router.js";
import { ask } from "../../parts/dialog.js";
import { toast } from "../../parts/toast.js";

/** Ask for a job, schedule it and open it.
 * @param {string[]} kinds the known ones @param {string} kind the one that the filter names */
export async function scheduleJob(kinds, kind) {
  const nonceOf = keyed();
  let scheduled = "";
  const values = await ask({
    title: "Schedule a job",
    action: "Schedule",
    isWide: true,
    fields: [
      { name: "kind", label: "Kind", required: true, value: kind.includes("*") ? "" : kind, choices: kinds, hint: "A worker or an agent that handles this kind takes it." },
      { name: "payload", label: "Payload (JSON)", rows: 6, value: "{}" },
      { name: "priority", label: "Priority", value: "1", hint: "A job with a higher number is taken earlier." },
      { name: "more", label: "Other fields of the manifest (JSON)", rows: 3, hint: 'For example {"after": ["JOB"], "timeout": "10m", "tags": ["gpu"]}.' },
    ],
    run: async (given) => {
      const manifest = manifestOf(given);
      // The nonce makes it a job of its own, and of a request that is sent again the same one.
      const [job] = await send("POST", "/v1/jobs", { manifests: [{ nonce: nonceOf(manifest), ...manifest }] });
      scheduled = job.job_id;
    },
  });
  if (values === null) return;
  toast("Scheduled the job.");
  go(to("job", scheduled));
}

/** @param {Record<string, string>} given */
function manifestOf({ kind = "", payload = "", priority = "", more = "" }) {
  const rest = more.trim() ? parsed("Other fields", more) : {};
  if (typeof rest !== "object" || rest === null || Array.isArray(rest)) throw new Error("Other fields must be a JSON object");
  if (!/^-?\d+$/.test(priority.trim())) throw new Error(`Priority must be a whole number, got ${priority}`);
  const content = payload.trim() ? { payload: parsed("Payload", payload) } : {};
  return { kind: kind.trim(), ...content, priority: Number(priority), ...rest };
}

/** @param {string} name @param {string} text */
function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} must be JSON: ${error instanceof Error ? error.message : error}`);
  }
}
