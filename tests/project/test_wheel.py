"""The wheel: it carries all that the package needs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USE = """
import asyncio, sys
import vox_mesh
from vox_mesh import Script, Statement, load_settings, open_store
async def main():
    async with await open_store(load_settings(enabled=True)) as store:
        await store.write(Script(Statement("CREATE TABLE t (a)")))
        await store.write(Script(Statement("INSERT INTO t (a) VALUES ('x')")))
        print(vox_mesh.__file__, store.backend.value, (await store.read("SELECT a FROM t")).value)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it would be published."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_it_carries_the_statements_and_the_type_mark_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    statements = {f"vox_mesh/{path.relative_to(ROOT)}" for path in (ROOT / "sql").rglob("*.sql")}
    assert "vox_mesh/sql/migrations/0008_baseline.sql" in statements
    assert statements <= set(names)
    assert "vox_mesh/py.typed" in names
    schemas = {str(path.relative_to(ROOT)) for path in (ROOT / "vox_mesh" / "schemas").glob("*.json")}
    assert "vox_mesh/schemas/job_manifest.schema.json" in schemas
    assert schemas <= set(names)
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "vox_mesh" / "web").rglob("*") if path.is_file()}
    assert {"vox_mesh/web/index.html", "vox_mesh/web/vendor.LICENSES.txt"} < pages
    assert pages <= set(names)
    server = {
        f"vox_mesh/contrib/sqld/{name}" for name in ("start.sh", "build_extension.sh", "no_file_access.c")
    }
    assert server <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vox_mesh"}
    assert not [name for name in names if "tests" in name or name.endswith(".pyc")]


def test_it_works_by_itself_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(unpacked), "VOX_MESH_HOME": ".vox"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(unpacked / "vox_mesh" / "__init__.py"), "file", "x"]
    assert (elsewhere / ".vox" / "cache" / "db" / "local.db").exists()
