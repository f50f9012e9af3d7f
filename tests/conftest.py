"""Fixtures for all tests: real servers, and an end to what an app that nobody closed would still do."""

import gc
from collections.abc import Iterator

import pytest

from twiceproof.claims import tally

pytest_plugins = ["tests.servers.fixtures"]


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end. With them in sight the collector comes so rarely that apps which tests left
    open pile up by the hundred, with their threads, and every fork takes ten times as long.
    """
    gc.freeze()
    gc.collect()


@pytest.fixture(autouse=True)
def no_count_outlives_its_test() -> Iterator[None]:
    """An app that a test left open, or played dead, would count its duplicates seconds later: into another test's log,
    or to a stream that is closed.
    """
    before = set(tally._tallies)
    yield
    for left in set(tally._tallies) - before:
        left._stopped = left._given_up = True
        if left._errand is not None:
            left._errand.cancel()
