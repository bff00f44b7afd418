"""`vox-mesh workflow`: runs of files, shown and listed."""

from __future__ import annotations

from tests.cli.conftest import VoxCommand
from tests.support.jobs.job_scene import done

_FILE = """
params: { who: world }
jobs:
  greet:
    command: [sh, -c, 'echo "hello, $WHO"; pwd -P >&2']
    env: { WHO: "${{ params.who }}" }
  shout:
    after: [greet]
    command: [printf, "%s!", "${{ jobs.greet.output }}"]
"""


def test_a_file_is_run_again_and_again_and_each_run_is_shown(vox: VoxCommand) -> None:
    (vox.folder / "greeting.yaml").write_text(_FILE)
    first = vox("workflow", "run", "greeting.yaml", "--json").document
    second = vox("workflow", "run", "greeting.yaml", "--param", "who=you", "--json").document
    assert first["run_id"] != second["run_id"]
    assert [(each["name"], each["state"]) for each in first["items"]] == [
        ("greet", "pending"),
        ("shout", "pending"),
    ]
    jobs = {(run["run_id"], each["name"]): each["job_id"] for run in (first, second) for each in run["items"]}
    done(*jobs.values())
    shouts = [vox("job", "result", jobs[run["run_id"], "shout"]).out for run in (first, second)]
    assert shouts == ["hello, world!\n", "hello, you!\n"]
    assert str(vox.folder.resolve()) in vox("job", "logs", jobs[first["run_id"], "greet"]).err
    shown = vox("workflow", "show", second["run_id"], "--json").document
    assert (shown["workflow"], shown["state"], shown["succeeded"]) == ("greeting", "succeeded", 2)
    listed = vox("workflow", "list", "--json").document
    assert {each["run_id"] for each in listed} == {first["run_id"], second["run_id"]}
    text = vox("workflow", "show", second["run_id"]).out
    assert ("succeeded" in text, jobs[second["run_id"], "shout"][:12] in text) == (True, True)


def test_what_is_wrong_with_a_file_or_a_parameter_ends_with_2(vox: VoxCommand) -> None:
    (vox.folder / "bad.yaml").write_text("jobs:\n  a:\n    kind: work\n    after: [b]\n")
    bad = vox("workflow", "run", "bad.yaml")
    assert (bad.code, bad.err.startswith("bad.yaml:4: jobs.a.after[0]: there is no job 'b'")) == (2, True)
    (vox.folder / "good.yaml").write_text(_FILE)
    unknown = vox("workflow", "run", "good.yaml", "--param", "whom=you")
    assert (unknown.code, "there is no parameter 'whom'" in unknown.error) == (2, True)
    assert vox("workflow", "run", "good.yaml", "--param", "who").code == 2
    missing = vox("workflow", "show", "01M7GAG5K8G3DHVWR8SNR37000")
    assert (missing.code, "there is no run" in missing.error) == (1, True)
    assert vox("job", "list").out == "none\n"
