"""The bundle of the console's modules: it does what they do, and needs less room."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tools.install_npm import node, packages
from vox_mesh.http.console.bundle import bundle
from vox_mesh.http.console.compaction import compact_script, compact_style
from vox_mesh.http.console.files import FOLDER

_PATIENCE_S: Final = 60
_MODULES: Final = {
    "app/main.js": """
/** The entry. */
import { join } from "../library.js";
import { keyOf } from "../parts/left.js";
import { keyOf as other, Text } from "../parts/right.js";
import { SCREENS } from "./screens.js";

const text = join(`${keyOf({ id: 1 })}`, other({ id: 2 }), Text); // after its imports
SCREENS[0].load().then((module) => console.log(text, module.default(), typeof document));
""",
    "app/screens.js": """
export const SCREENS = [{ load: () => import("../screens/first.js") }];
""",
    "parts/left.js": """
/** @param {{id: number}} row */
export function keyOf(row) {
  const short = (/** @type {string} */ name) => name.replace(/[/'"]+|\\/\\*/g, "-");
  return `left ${[row.id].map((each) => `<${short("a/'b")} href="//x${"}"}">${each}</a>`).join("")}`;
}
console.log("left");
""",
    "parts/right.js": """
export async function wait() {}
export const Text = "right text", SIZE = 4 / 2 / 1;
export function keyOf({ id }) {
  return id / 2 + " /* of */ right // " + SIZE;
}
console.log("right", wait.name);
""",
    "screens/first.js": """
import { Text } from "../parts/right.js";

export default function Text2() {
  return [Text, typeof keyOf].join();
}
console.log("first");
""",
}


def _run(script: Path) -> list[str]:
    ran = subprocess.run(
        [node(), script], capture_output=True, text=True, check=True, timeout=_PATIENCE_S, cwd=script.parent
    )
    return ran.stdout.splitlines()


def test_a_bundle_does_what_its_modules_do(tmp_path: Path) -> None:
    files = {
        **_MODULES,
        "library.js": "export const join = (...all) => all.join(' + ');",
        "package.json": '{"type": "module"}',
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "console.js").write_text(bundle(_MODULES, "app/main.js"))
    bundled, plain = _run(tmp_path / "console.js"), _run(tmp_path / "app" / "main.js")
    assert sorted(bundled) == sorted(plain)
    assert bundled[-1] == plain[-1]
    assert len(plain) == 4


def test_compaction_changes_no_code_of_the_console(tmp_path: Path) -> None:
    """A compiler reads the same in each module before and after it."""
    modules = {
        path.relative_to(FOLDER): path.read_text() for path in FOLDER.rglob("*.js") if path.parent != FOLDER
    }
    for name, source in modules.items():
        for side, text in (("plain", source), ("compact", compact_script(source))):
            (tmp_path / side / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / name).write_text(text)
    for side in ("plain", "compact"):
        command = [str(packages("npm-web") / ".bin" / "esbuild"), "--minify-whitespace", "--charset=utf8"]
        names = [str(tmp_path / side / name) for name in modules]
        options = [
            f"--outdir={tmp_path / 'read' / side}",
            f"--outbase={tmp_path / side}",
            "--log-level=error",
        ]
        subprocess.run([*command, *options, *names], check=True, timeout=_PATIENCE_S)
    for name in modules:
        plain, compact = ((tmp_path / "read" / side / name).read_text() for side in ("plain", "compact"))
        assert _on_lines(plain) == _on_lines(compact), name


def _on_lines(text: str) -> str:
    """Return a script with `let` only, without space around line breaks, and without those next to tags."""
    text = re.sub(r"\bconst\b", "let", text)
    return re.sub(r"(?<=>)\n|\n(?=[<`])", "", re.sub(r"\s*\n\s*", "\n", text))


@pytest.mark.parametrize(
    ("source", "compact"),
    [
        ("const a = 1; // one\n\n/* two */ let b = a ? 2 : 3;\n", "let a=1;let b=a?2:3;"),
        ("return /x \\/* y/g.test(a) / 2 / b;", "return /x \\/* y/g.test(a)/ 2 / b;"),
        ("a = b\n++c", "a=b\n++c"),
        ("x = { a, b }\n  .c", "x={a,b}.c"),
        (
            "html`<p>\n   a ${ f({ x: `} ${ 1 }` }) } // no comment\n</p>`",
            "html`<p>a ${f({x:`} ${1}`})} // no comment</p>`",
        ),
        ("f(\"a  /* b\", 'c  // d')", "f(\"a  /* b\",'c  // d')"),
        ("typeof a in b", "typeof a in b"),
        ("a1_2 = 1_000_000 + `1_000`", "a1_2=1000000+`1_000`"),
        ("a - b !== - c + + d", "a-b!==-c+ +d"),
        ("f(\n  [a, b,],\n  { c,\n },\n);\n", "f([a,b],{c});"),
        ("const f = () =>\n  g();\n{ f(); }", "let f=()=>g();{f()}"),
        ('f(",)", `,]`, /;}/)', 'f(",)",`,]`,/;}/)'),
    ],
)
def test_only_what_a_browser_does_not_need_is_left_out(source: str, compact: str) -> None:
    assert compact_script(source) == compact


def test_styles_lose_comments_and_needless_space() -> None:
    plain = "/* a */\np > a:hover, b :focus {\n  color: red;\n  width: calc(1px + 2px);\n}\n"
    plain += "\n@media (x: 1px) {\n  q { top: 0 }\n}\n"
    short = "p>a:hover,b :focus{color:red;width:calc(1px + 2px)}@media (x:1px){q{top:0}}\n"
    assert compact_style(plain) == short


@pytest.mark.parametrize(
    ("modules", "fault"),
    [
        (
            {
                "a/x.js": 'import { y } from "./y.js";\nexport const x = y;',
                "a/y.js": 'import { x } from "./x.js";\nexport const y = x;',
            },
            "import each other",
        ),
        ({"a/x.js": 'export * from "./y.js";'}, "import and export names"),
        ({"a/x.js": 'import x from "../y.js";'}, "import and export names"),
        ({"a/x.js": 'const y = import("./y.js");', "a/y.js": "export const y = 1;"}, "default export"),
    ],
)
def test_what_can_not_be_bundled_is_refused(modules: dict[str, str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        bundle(modules, "a/x.js")
