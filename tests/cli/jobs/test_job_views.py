"""`vox-mesh job logs`, `graph` and `rebuild`."""

from __future__ import annotations

from tests.cli.conftest import VoxCommand
from tests.cli.database.test_oplog import database
from tests.cli.jobs.test_job import kind, scheduled
from tests.support.jobs.job_scene import done
from vox_mesh.store.script import new_key


def test_what_a_job_prints_comes_out_where_it_went_in(vox: VoxCommand) -> None:
    script = "echo one; echo two >&2; printf '\\033[31mthree'"
    job = scheduled(vox, "--", "sh", "-c", script)["job_id"]
    assert vox("job", "logs", job).out == ""
    done(job)
    for more in ((), ("--follow",)):
        ended = vox("job", "logs", job, *more)
        assert (ended.code, ended.out, ended.err) == (0, "one\n\x1b[31mthree", "two\n")
    pieces = vox("job", "logs", job, "--json").document
    assert {*pieces[0]} == {"n", "claim_token", "stream", "text", "logged_ms"}
    assert "".join(each["text"] for each in pieces if each["stream"] == "stdout") == "one\n\x1b[31mthree"
    lines = vox("job", "logs", job, "--json", "--follow").out.splitlines()
    assert len(lines) == len(pieces)


def test_a_graph_shows_each_job_below_what_it_waits_for(vox: VoxCommand) -> None:
    assert vox("job", "graph").out == "none\n"
    op_id = new_key()
    kind(vox, "alone")
    root = kind(vox, "root")
    left, right = kind(vox, "left", "--after", root), kind(vox, "right", "--after", f"{root}:end")
    last = kind(vox, "last", "--after", left, "--after", right, "--after", f"op:{op_id}")
    leaf = kind(vox, "leaf", "--after", last)

    def label(job_id: str, name: str) -> str:
        return f"{job_id[:12]} {name} pending"

    tree = vox("job", "graph", leaf).out.splitlines()
    assert tree[0] == label(root, "root")
    assert {f"├─ {label(left, 'left')}", f"└─ {label(left, 'left')}"} & {*tree}
    assert f"   └─ {label(right, 'right')} (after its end)"[3:] in {line.replace("├", "└") for line in tree}
    assert sum(label(last, "last") in line for line in tree) == 3
    assert sum(label(leaf, "leaf") in line for line in tree) == 1  # it is unfolded once
    assert sum("(see above)" in line for line in tree) == 2
    assert f"op {op_id}" in tree
    assert sorted(vox("job", "graph").out) == sorted("\n".join(tree) + "\n")
    assert "alone" not in vox("job", "graph").out
    document = vox("job", "graph", root, "--json").document
    assert {each["job_id"] for each in document["jobs"]} == {root, left, right, last, leaf}
    edges = {(each["predecessor"], each["job_id"], each["awaited"]) for each in document["edges"]}
    assert {(root, right, "end"), (op_id, last, "op"), (last, leaf, "success")} < edges
    assert len(edges) == 6
    dot = vox("job", "graph", "--dot").out
    assert f'"{root}" -> "{right}" [label="end", style=dashed];' in dot
    assert f'"{last}" -> "{leaf}";' in dot


def test_nothing_that_a_row_holds_gets_out_of_its_quotes(vox: VoxCommand) -> None:
    root = kind(vox, "root")
    kind(vox, "leaf", "--after", root)
    with database(vox) as connection:
        connection.execute("UPDATE jobs SET kind = ? WHERE kind = 'root'", ['a" ]; evil\\\n\x1b[31m'])
    dot = vox("job", "graph", "--dot").out
    assert '[label="' + root[:12] + ' a\\" ]; evil\\\\??[31m pending", color=black];' in dot
    assert vox("job", "graph").out.splitlines()[0] == f'{root[:12]} a" ]; evil\\??[31m pending'


def test_a_chain_of_any_length_is_drawn(vox: VoxCommand) -> None:
    names = [new_key() for _ in range(400)]
    documents = [f"kind: link\nulid: {name}" for name in names]
    documents[1:] = [f"{text}\nafter: [{before}]" for text, before in zip(documents[1:], names, strict=False)]
    (vox.folder / "chain.yaml").write_text("\n---\n".join(documents))
    assert vox("job", "schedule", "-f", "chain.yaml").code == 0
    tree = vox("job", "graph", names[200]).out.splitlines()
    assert (len(tree), tree[-1].startswith(" " * 3 * 398 + "└─ ")) == (400, True)


def test_the_roster_is_compared_with_the_log_and_mended(vox: VoxCommand) -> None:
    job = kind(vox)
    sound = vox("job", "rebuild", "--check", "--json")
    assert (sound.code, sound.document) == (0, {"differences": [], "findings": [], "repaired": False})
    with database(vox) as connection:
        connection.execute("UPDATE jobs SET priority = 3")
    found = vox("job", "rebuild", "--check", "--json")
    (difference,) = found.document["differences"]
    assert found.code == 1
    assert difference == {"job_id": job, "column": "priority", "in_roster": 3, "by_log": 1}
    assert "found 1 differences" in vox("job", "rebuild", "--check").out
    assert vox("job", "show", job, "--json").document["priority"] == 3
    mended = vox("job", "rebuild", "--repair")
    assert (mended.code, "repaired 1 differences" in mended.out) == (0, True)
    assert vox("job", "show", job, "--json").document["priority"] == 1
    assert vox("job", "rebuild", "--check").code == 0
