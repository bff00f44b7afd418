/** The console: a page for people, live, at every node of the mesh. */
import { html, render, useEffect } from "../vendor.js";
import { restore, session } from "./session.js";
import { Shell } from "./shell.js";
import { SignIn } from "./signin.js";
import { restoreTheme } from "./theme.js";

function App() {
  useEffect(() => {
    void restore();
    // The address of `vox-mesh console`, pasted into a window that shows this page, is not loaded again.
    const pasted = () => location.hash.includes("code=") && void restore();
    addEventListener("hashchange", pasted);
    return () => removeEventListener("hashchange", pasted);
  }, []);
  if (session.value === undefined) return html`<p class="boot" role="status">Loading the console…</p>`;
  return session.value ? html`<${Shell} key=${session.value.name} />` : html`<${SignIn} />`;
}

restoreTheme();
const root = document.getElementById("app");
if (root) {
  root.replaceChildren();
  render(html`<${App} />`, root);
}
