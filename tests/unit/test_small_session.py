"""Tests that fork run in a small pytest of their own, and their reports are those of any other test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests import small_session
pytest_plugins = ["tests.small_session"]
small_session.MANY = 0
"""
INI = "[pytest]\nmarkers =\n    forks\n    server\n"
TESTS = """
import os, pytest
pytestmark = pytest.mark.forks
made = []

@pytest.fixture(scope="module")
def once():
    made.append(1)
    yield len(made)
    assert made == [1]  # taken down once, by whoever ran the tests

@pytest.mark.parametrize("number", [1, 2])
def test_one_process_runs_those_that_fork(request, once, number, tmp_path):
    assert request.config.getoption("--serve") and once == 1

@pytest.mark.server
def test_a_server_is_the_workers(request, once):
    assert not request.config.getoption("--serve")

def test_fails():
    print("what it said")
    assert 1 == 2

def test_is_skipped():
    pytest.skip("for a reason")

def test_ends_the_process():
    os._exit(3)
"""


@pytest.mark.slow
def test_a_worker_hands_over_the_tests_that_fork_and_reports_them(tmp_path: Path) -> None:
    for name, text in (("conftest.py", CONFTEST), ("pytest.ini", INI), ("test_it.py", TESTS)):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-rs", "--basetemp", tmp_path / "temp"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    told = done.stdout + done.stderr
    assert "2 failed, 3 passed, 1 skipped" in told, told
    assert "what it said" in told and "assert 1 == 2" in told and "for a reason" in told
    assert "the small session ended with 3" in told
