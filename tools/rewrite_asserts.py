"""Rewrite the asserts of all tests as pytest does, and keep the results where pytest looks for them.

The workers of a run start together: in a new checkout, each of them would rewrite all tests itself.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _write_pyc_fp, get_cache_dir, rewrite_asserts

_MODULES: Final = ("test_*.py", "conftest.py")
_AT_ONCE: Final = 16
"""Modules that are handed to a process together."""


def cached_path(module: Path) -> Path:
    """Return where pytest keeps a module whose asserts are rewritten."""
    return get_cache_dir(module) / f"{module.stem}{PYC_TAIL}"


def is_cached(module: Path) -> bool:
    """Return whether pytest would take the module from its cache."""
    return _read_pyc(module, cached_path(module)) is not None


def rewrite(module: Path) -> None:
    """Rewrite the asserts of one module, unless it is cached."""
    if is_cached(module):
        return
    source, path = module.read_bytes(), cached_path(module)
    tree = ast.parse(source, filename=str(module))
    rewrite_asserts(tree, source, str(module))
    code = compile(tree, str(module), "exec", dont_inherit=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        _write_pyc_fp(file, importlib.util.source_hash(source), code)
    part.replace(path)


def rewrite_all(folder: Path) -> None:
    """Rewrite the asserts of all test modules below a folder, on all processors."""
    modules = [path for pattern in _MODULES for path in sorted(folder.rglob(pattern))]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(rewrite, modules, chunksize=_AT_ONCE))
