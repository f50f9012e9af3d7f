"""Fixtures for all tests: real servers."""

pytest_plugins = ["tests.servers.fixtures"]
