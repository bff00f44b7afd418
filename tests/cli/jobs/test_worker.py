"""`vox-mesh worker`: what can be wrong with a worker before it begins, who works, and who takes no more."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from tests.support.jobs import example_handlers
from tools.forked import Process
from vox_mesh import HandlerSet, JobContext
from vox_mesh.cli import app
from vox_mesh.errors import BadSettings, BadValue
from vox_mesh.jobs.worker.handlers import Handler, load_handlers


async def _work(context: JobContext) -> None: ...


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The working folder, with modules that can be imported from there; and no trace of them afterwards."""
    shutil.copy(str(example_handlers.__file__), tmp_path / "example.py")
    (tmp_path / "broken_here.py").write_text("1 / 0\n")
    (tmp_path / "needs_another.py").write_text("import no_such_thing\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# --- what can be wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("", "nothing to work on: pass --app, --handlers, --exec or --agents"),
        (
            "--handlers example",
            "must be given as module:object, got 'example'; for example my_handlers:handlers",
        ),
        ("--handlers :handlers", "must be given as module:object, got ':handlers'"),
        ("--handlers example:", "must be given as module:object, got 'example:'"),
        ("--handlers ./example.py:handlers", "must be given as module:object"),
        ("--handlers nowhere:handlers", "module nowhere not found; add its folder to PYTHONPATH"),
        ("--handlers example.inner:handlers", "module example.inner not found"),
        ("--handlers needs_another:handlers", "needs_another can't be imported: ModuleNotFoundError"),
        ("--handlers broken_here:handlers", "can't be imported: ZeroDivisionError: division by zero"),
        ("--handlers leaves:handlers", "module leaves can't be imported: SystemExit: 0"),
        ("--handlers example:nothing", "module example has no nothing"),
        ("--handlers example:handlers.nothing", "module example has no handlers.nothing"),
        (
            "--handlers example:number",
            "example:number must be a HandlerSet, a MeshApp or a function, got type int",
        ),
        (
            "--handlers example:HandlerSet",
            "example:HandlerSet must be a HandlerSet, a MeshApp or a function, got a class",
        ),
        (
            "--handlers example:register_later",
            "must be a HandlerSet, a MeshApp or a function, got an async function",
        ),
        ("--handlers example:empty", "example:empty has no handlers; register them with"),
        ("--handlers example:fail", "example:fail failed: RuntimeError: no model is here"),
        ("--handlers example:handlers --handlers example:handlers", "example.echo has two handlers"),
        ("--handlers example:handlers --kinds other", "no handler for other; choose among example."),
        (
            "--handlers example:handlers --kinds Other!",
            "a kind must be a name or a prefix pattern, got 'Other!'",
        ),
        ("--exec --kinds other", "no handler for other; register a handler first"),
        ("--handlers example:handlers --kinds exec", "commands need --exec"),
        ("--handlers example:handlers --exec-allow echo", "commands need --exec"),
        ("--exec --exec-allow bin/echo", "must be a name or an absolute path, got 'bin/echo'"),
        ("--exec --exec-allow echo,", "must be a name or an absolute path, got ''"),
        ("--exec --concurrency 0", "0 is not in the range"),
        ("--exec --grace soon", "'soon' is not a duration"),
        ("--exec too-much", "unexpected extra argument"),
    ],
)
def test_what_can_not_begin_ends_with_2_and_one_line_and_nothing_is_begun(
    modules: Path, capsys: pytest.CaptureFixture[str], arguments: str, fault: str
) -> None:
    assert_wrong_usage(f"worker run {arguments}", fault, capsys)
    assert not (modules / ".vox").exists()


def test_an_empty_list_of_programs_is_not_any_program(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["worker", "run", "--exec", "--exec-allow", ""]) == 2
    assert "must be a name or an absolute path, got ''" in capsys.readouterr().err


def test_a_list_of_programs_in_the_environment_is_checked_before_anything_is_begun(
    modules: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_WORKER_EXEC_ALLOW", "bin/echo")
    assert_wrong_usage(
        "worker run --exec", "VOX_WORKER_EXEC_ALLOW: each program must be a name or an absolute path", capsys
    )
    assert not (modules / ".vox").exists()


@pytest.mark.parametrize("command", ["run --exec", "drain node", "list"])
def test_on_the_memory_home_there_is_nothing_to_work_on(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(f"worker {command}", "needs a mesh, and", capsys)


def test_with_the_database_away_the_list_ends_with_3(vox: VoxCommand) -> None:
    ended = vox.having(VOX_DB_URL="http://127.0.0.1:1")("worker", "list")
    assert (ended.code, "can't be reached" in ended.error) == (3, True)


# --- handlers ------------------------------------------------------------------------------------


def test_handlers_of_several_objects_are_one_set(modules: Path) -> None:
    loaded = load_handlers(["example:handlers", "example:register"])
    assert loaded.patterns == [
        *(f"example.{name}" for name in ("block", "echo", "registered.*", "stuck", "wait"))
    ]
    found = loaded.of("example.registered.deeply.below")
    assert found is not None
    assert (found.pattern, found.concurrency, found.is_async) == ("example.registered.*", 1, True)
    assert loaded.of("example.registered") is None


def test_the_folder_that_it_is_started_in_comes_before_what_is_installed(modules: Path) -> None:
    (modules / "pyclbr").mkdir()
    (modules / "pyclbr" / "__init__.py").write_text("from example import handlers\n")
    assert load_handlers(["pyclbr:handlers"]).of("example.echo") is not None


@pytest.mark.parametrize(
    ("register", "fault"),
    [
        (lambda some: some.handles("exec")(_work), "exec can't have a handler: it is the kind of commands"),
        (lambda some: some.handles("Upper")(_work), "a kind must be a name or a prefix pattern, got 'Upper'"),
        (lambda some: some.handles("a*")(_work), r"got 'a\*'"),
        (
            lambda some: some.handles("a.b", concurrency=0)(_work),
            "concurrency of a.b must be at least 1, got 0",
        ),
        (lambda some: some.handles("a.b", lease=0)(_work), "lease of a.b must be at least 1 ms, got 0 ms"),
        (lambda some: some.handles("a.b")(None), "the handler for a.b must be callable, got NoneType"),
        (lambda some: [some.handles("a.b")(_work) for _ in "12"], "a.b has two handlers"),
    ],
)
def test_a_handler_that_could_never_work_is_refused(
    register: Callable[[HandlerSet], object], fault: str
) -> None:
    with pytest.raises(BadValue, match=fault):
        register(HandlerSet())


def test_commands_are_no_handlers_work_whatever_its_pattern_says() -> None:
    handlers = HandlerSet()
    handlers.handles("*")(_work)
    assert handlers.of("anything.else") is not None
    assert handlers.of("exec") is None


def test_of_the_kinds_that_are_wanted_each_keeps_the_handler_that_is_for_it() -> None:
    handlers = HandlerSet()
    for pattern in ("a.*", "a.b", "c"):
        handlers.handles(pattern)(_work)
    handlers.only(["a.*"])
    assert handlers.patterns == ["a.*"]
    assert [_pattern_of(handlers.of(kind)) for kind in ("a.b", "a.x", "c")] == ["a.b", "a.*", None]
    handlers.only(["a.x.y", "*"])
    assert handlers.patterns == ["a.*", "a.b", "a.x.y", "c"]
    handlers.only(["a.x.y"])
    assert [_pattern_of(handlers.of(kind)) for kind in ("a.b", "a.x", "a.x.y")] == [None, None, "a.*"]
    handlers.only([])
    assert handlers.patterns == []


def _pattern_of(handler: Handler | None) -> str | None:
    return None if handler is None else handler.pattern


def test_an_object_that_can_be_awaited_when_called_is_async() -> None:
    class Model:
        async def __call__(self, context: JobContext) -> None: ...

    assert Handler("a", Model()).is_async
    assert not Handler("a", print).is_async


def test_a_module_that_names_no_handlers_is_reported_by_its_name(modules: Path) -> None:
    with pytest.raises(BadSettings, match="example:number"):
        load_handlers(["example:handlers", "example:number"])


# --- who works -----------------------------------------------------------------------------------


def _heard(process: Process, words: str) -> str:
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def test_workers_are_listed_and_one_that_is_drained_takes_no_more(vox: VoxCommand) -> None:
    assert vox("worker", "list").out == "none\n"
    with vox.running("worker", "run", "--exec", "--concurrency", "4", "--tag", "gpu") as process:
        node_id = _heard(process, "worker started: ").partition("node_id=")[2].split()[0]
        (listed,) = vox("worker", "list", "--json").document
        shown = {"node_id": node_id, "state": "alive", "kinds": ["exec"], "capacity": 4, "in_hand": 0}
        assert listed == {**shown, "draining": False}
        heading, line = (each.split() for each in vox("worker", "list").out.splitlines())
        assert heading == ["node_id", "state", "kinds", "capacity", "in_hand", "draining"]
        assert line == [node_id, "alive", "exec", "4", "0", "no"]
        for _ in range(2):
            assert vox("worker", "drain", node_id, "--json").document == {**shown, "draining": True}
        refused = vox("worker", "drain", "unknown")
        assert (refused.code, "node 'unknown' not found" in refused.error) == (1, True)
        assert vox("worker", "drain", "unknown", "--undo").code == 1
        assert vox("worker", "drain", node_id, "--undo", "--json").document == {**shown, "draining": False}
        assert vox("job", "schedule", "--tag", "gpu", "--isolated", "--wait", "--", "true").code == 0
        vox("worker", "drain", node_id)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    (left,) = vox("worker", "list", "--json").document  # so that no one forgets about it
    assert (left["node_id"], left["state"], left["draining"]) == (node_id, "left", True)
    vox("worker", "drain", node_id, "--undo")
    assert vox("worker", "list", "--json").document == []
