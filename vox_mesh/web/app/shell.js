/** The frame of all screens: navigation, the beat, who is signed in, and whether the node answers. */
import { html, useEffect, useState } from "../vendor.js";
import { Dialogs } from "../parts/dialog.js";
import { Icon } from "../parts/icon.js";
import { Empty, Page } from "../parts/page.js";
import { Line } from "../parts/text.js";
import { Toasts } from "../parts/toast.js";
import { Lost } from "./lost.js";
import { openOverlay } from "./keys.js";
import { Overlays } from "./overlays.js";
import { Link, route, to } from "./router.js";
import { SCREENS, loaderOf } from "./screens.js";
import { session, signOut } from "./session.js";
import { follow, mesh } from "./state.js";
import { nextTheme } from "./theme.js";

export function Shell() {
  const [stream, setStream] = useState(/** @type {ReturnType<typeof follow> | null} */ (null));
  useEffect(() => {
    const following = follow();
    setStream(following);
    return following.end;
  }, []);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <div class="frame">
      <${Side} />
      <main class="main" id="main" tabindex="-1">
        <${Lost} tryNow=${() => stream?.wake()} />
        <${Current} />
      </main>
    </div>
    <${Dialogs} /><${Overlays} /><${Toasts} />`;
}

function Side() {
  const [isOpen, setOpen] = useState(false);
  const { screen } = route.value;
  useEffect(() => setOpen(false), [route.value]);
  return html`<header class=${isOpen ? "side open" : "side"}>
    <div class="top">
      <${Link} class="brand" href=${to("needs")}><img src="/ui/static/icon.svg" alt="" />vox-mesh<//>
      <button class="plain menu-button" aria-expanded=${isOpen ? "true" : "false"} aria-controls="screens" onClick=${() => setOpen(!isOpen)}>
        <${Icon} name="menu" /><span class="unseen">Menu</span>
      </button>
    </div>
    <nav id="screens" aria-label="Screens">
      ${SCREENS.map(
        ({ name, title }) => html`<${Link} href=${to(name)} key=${name} aria-current=${isOf(screen, name) ? "page" : undefined}>
          <${Icon} name=${name} />${title}${name === "needs" && html`<${NeedsCount} />`}
        <//>`,
      )}
    </nav>
    <div class="foot">
      <${Beat} />
      <button class="small" onClick=${() => openOverlay("palette")}><${Icon} name="search" />Find <kbd>Ctrl K</kbd></button>
      <div class="row">
        <button class="plain" aria-label="Light or dark" onClick=${nextTheme}><${Icon} name="sun" /></button>
        <button class="plain" aria-label="Keys" onClick=${() => openOverlay("help")}><${Icon} name="question" /></button>
        <button class="plain" aria-label="Sign out" onClick=${() => void signOut()}><${Icon} name="out" /></button>
      </div>
      <div>
        <${Line} text=${session.value?.name} max=${40} />${!session.value?.may_write && " (read only)"}<br />
        at <${Line} text=${session.value?.node_id} max=${40} />
      </div>
    </div>
  </header>`;
}

/** Whether a screen, or one of its details, is shown.
 * @param {string} current @param {string} name */
function isOf(current, name) {
  return current === name || (current === "job" && name === "jobs") || (current === "agent" && name === "fleet") || (current === "approval" && name === "needs");
}

function NeedsCount() {
  /** @type {Record<string, number>} */
  const counts = mesh.attention?.value?.counts ?? {};
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  return total > 0 && html`<span class="count" aria-label=${`${total} need you`}>${total > 999 ? "999+" : total}</span>`;
}

function Beat() {
  const beat = mesh.beats?.value;
  if (!beat) return null;
  return html`<div class="number" title="The beat of the mesh">Beat ${beat.beat_index} of ${beat.bar_len_beats} · ${beat.phase}</div>`;
}

/** The screen of the address, read when it is first opened. */
function Current() {
  const { screen } = route.value;
  const [loaded, setLoaded] = useState(/** @type {{name: string, view: any, problem?: boolean}} */ ({ name: "", view: null }));
  useEffect(() => {
    let isWanted = true;
    loaderOf(screen)?.().then(
      (module) => isWanted && setLoaded({ name: screen, view: module.default }),
      () => isWanted && setLoaded({ name: screen, view: null, problem: true }),
    );
    return () => {
      isWanted = false;
    };
  }, [screen]);
  if (!loaderOf(screen)) return html`<${Page} title="Not found"><${Empty} title="There is no such screen" icon="question"><${Link} href=${to("needs")}>See what needs you<//><//><//>`;
  if (loaded.name !== screen) return html`<p class="quiet" role="status">Loading…</p>`;
  if (loaded.problem) return html`<${Page} title="No answer"><${Empty} title="The node does not answer" icon="question">The page is shown when it does.<//><//>`;
  return html`<${loaded.view} key=${screen + route.value.id} />`;
}
