/** The page for those who have not signed in. */
import { html, useState } from "../vendor.js";
import { Page } from "../parts/page.js";
import { words } from "./api.js";
import { reason, signIn } from "./session.js";

export function SignIn() {
  const [problem, setProblem] = useState("");
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)));
    try {
      await signIn({ token: String(values.token).trim(), name: String(values.name).trim() });
    } catch (error) {
      setProblem(words(error));
    }
  };
  return html`<main class="sign-in" id="main" tabindex="-1">
    <${Page} title="Sign in">
      ${reason.value && html`<p class="problem" role="status">${reason.value}</p>`}
      <div class="panel stack">
        <p>On the machine of this node, run this. It opens the console with a code that works once:</p>
        <pre class="code" tabindex="0">vox-mesh console</pre>
      </div>
      <form class="panel stack" onSubmit=${submit}>
        <h2>Or with a token</h2>
        <label class="field">
          <span>Your name</span><input name="name" required maxlength="64" autocomplete="username" />
          <small>The op log names you with everything you do.</small>
        </label>
        <label class="field">
          <span>Token</span><input name="token" type="password" required autocomplete="current-password" />
          <small>The VOX_MESH_TOKEN of the node, or its VOX_MESH_READ_TOKEN to look only.</small>
        </label>
        ${problem && html`<p class="problem" role="alert">${problem}</p>`}
        <div class="actions"><button class="main-action">Sign in</button></div>
      </form>
    <//>
  </main>`;
}
