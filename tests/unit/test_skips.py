"""A missing integration skips its tests, any other missing module fails them; the reasons are summed up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.skips import LONGEST, skip_if_not_installed, summed_up


def test_only_a_missing_integration_skips() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"grpc\.aio is not installed"):
        skip_if_not_installed(ModuleNotFoundError("No module named 'grpc.aio'", name="grpc.aio"))
    skip_if_not_installed(ModuleNotFoundError("No module named 'twiceproof.grpc'", name="twiceproof.grpc"))
    skip_if_not_installed(ImportError("cannot import name 'x' from 'grpc'", name="grpc"))
    skip_if_not_installed(None)


def test_reasons_are_counted_and_cut_to_one_line() -> None:
    reports = [
        SimpleNamespace(longrepr=(f"tests/test_{number}.py", number, "Skipped: there is no pooler\nhere"))
        for number in range(3)
    ]
    long = SimpleNamespace(longrepr=("tests/test_9.py", 1, "Skipped: " + "x" * 500))
    assert list(summed_up([long, *reports])) == ["    3  there is no pooler here", f"    1  {'x' * LONGEST}"]
