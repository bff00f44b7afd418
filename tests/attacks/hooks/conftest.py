"""Fixtures: as for the tests of hooks."""

from tests.hosts.hooks.conftest import claude, name, project, repository, served

__all__ = ["claude", "name", "project", "repository", "served"]
