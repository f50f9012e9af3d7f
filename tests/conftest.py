"""Fixtures for all tests: real servers, and an end to what an app that nobody closed would still do."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.keeper import scratch
from twiceproof import threads as forks
from twiceproof.claims import duplicates as tally

pytest_plugins = ["tests.servers.fixtures", "tests.skips", "tests.small_session"]


MANY = 500  # objects that a fork tells of itself: some eight for each app

# What Hypothesis says of a test's speed is wall time, and depends on what else the machine does.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

told = {"after the last collection": 0}


def pytest_configure() -> None:
    """Temporary directories in memory where there is room: a disk's fsync takes milliseconds, and tests commit often.

    Also those of the processes that tests start. `TMPDIR` and `--basetemp` have precedence.
    A shell without job control starts `make test &` with SIGINT ignored, and every process that a test starts and
    interrupts would inherit that.
    """
    os.environ.setdefault("TMPDIR", str(scratch()))
    tempfile.tempdir = None  # what was found before
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: tests wait half their time, for servers, processes and time-outs."""
    return 2 * (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What failed can be looked at; what passed takes no memory any longer."""
    if exitstatus == 0 and not hasattr(session.config, "workerinput") and session.config.option.basetemp is None:
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of brokers come first: they wait for most of their time. At the end they would wait on an idle machine."""
    items.sort(key=lambda item: "contracts/brokers" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: no collection need look at them.

    From here on byte code is read but not written: a test that writes the same module twice within a second would get
    the first one's.
    """
    gc.freeze()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True)
def apps_that_were_left_open_do_not_pile_up() -> Iterator[None]:
    """The collector comes for them so rarely that there would be thousands, and the tests that fork tell each of it."""
    yield
    if len(forks._living) > told["after the last collection"] + MANY:
        gc.collect()
        gc.freeze()  # what is left are modules, for the most part: looking at them each time took an eighth of all time
        told["after the last collection"] = len(forks._living)


@pytest.fixture(autouse=True)
def no_count_outlives_its_test() -> Iterator[None]:
    """An app that a test left open, or played dead, would count its duplicates seconds later: into another test's log,
    or to a stream that is closed.
    """
    before = set(tally._tallies)
    yield
    for left in set(tally._tallies) - before:
        left._stopped = left._given_up = True
        if left._delayed is not None:
            left._delayed.cancel()
