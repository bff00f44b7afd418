"""Frameworks are slow to load: the tests of each load it when they run, not when pytest collects them."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need a framework, which may not be installed."""
    reason = f"{package} is not installed: pip install 'vox-mesh[{extra}]'"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def load(module: str) -> Any:
    """Import a module that imports a framework. What frameworks warn of as they load is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)
