/** A button that does something at the node: busy meanwhile, and a notice if it fails. */
import { html, useState } from "../vendor.js";
import { words } from "../app/api.js";
import { may } from "../app/session.js";
import { toast } from "./toast.js";

/**
 * `needs`: the operation of the API; without permission for it there is no button.
 * @param {{run: () => Promise<unknown>, needs?: string, children?: any, class?: string, done?: string, label?: string}} props
 */
export function Act({ run, needs, children, class: kind = "", done, label }) {
  const [isBusy, setBusy] = useState(false);
  if (needs && !may(needs)) return null;
  const click = async () => {
    setBusy(true);
    try {
      const result = await run();
      if (done && result !== null) toast(done);
    } catch (error) {
      toast(words(error), { isBad: true });
    } finally {
      setBusy(false);
    }
  };
  return html`<button type="button" class=${kind} disabled=${isBusy} aria-label=${label} onClick=${click}>${children}</button>`;
}
