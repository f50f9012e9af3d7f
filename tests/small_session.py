"""Tests marked `forks` run in a second pytest, which has collected nothing but them.

A worker that has collected the whole suite is large, and each fork copies its page tables: for a test that forks for
every scenario this takes longer than the scenarios.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import execnet
import pytest

MANY = 2_000  # collected tests; with fewer, a worker is small itself
SESSION = pytest.StashKey["SmallSession | None"]()


class SmallSession:
    """The second pytest, as the worker sees it. It ends when the worker does: then nothing orders another test."""

    def __init__(self, files: Sequence[str], config: pytest.Config) -> None:
        self._config = config
        self._link, theirs = Pipe()
        folder = config._tmp_path_factory.getbasetemp() / "small"  # type: ignore[attr-defined]
        options = ["-n", "0", "-p", "no:cacheprovider", f"--rootdir={config.rootpath}", f"--basetemp={folder}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", __name__, f"--serve={theirs.fileno()}", *options, *files],
            cwd=config.rootpath,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()

    def run(self, item: pytest.Item, following: pytest.Item | None) -> Iterator[Any]:
        """Run one test, and return its reports."""
        try:
            _send(self._link, (item.nodeid, following and following.nodeid))
            while (told := _received(self._link)) is not None:
                yield self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
        except (EOFError, OSError):
            why = f"the small session ended with {self._process.wait()}"
            yield pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")

    def close(self) -> None:
        with suppress(OSError):
            _send(self._link, None)  # a process that a test has left may keep a copy of our end open
        self._process.wait()


def _send(link: Connection, told: Any) -> None:
    """As the workers of pytest-xdist send their reports."""
    link.send_bytes(execnet.dumps(told))


def _received(link: Connection) -> Any:
    return execnet.loads(link.recv_bytes())


def is_for_small_session(item: pytest.Item | None) -> bool:
    """Servers are those of the worker."""
    return item is not None and bool(item.get_closest_marker("forks")) and not item.get_closest_marker("server")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not is_for_small_session(item) or (small := _small_session(item.session)) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in small.run(item, nextitem if is_for_small_session(nextitem) else None):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # what earlier tests of this module have set up
    return True


def _small_session(session: pytest.Session) -> SmallSession | None:
    """Started for the first test that needs it; None in a pytest that somebody looks at, or that is small."""
    if SESSION not in session.stash:
        is_large = hasattr(session.config, "workerinput") and len(session.items) > MANY
        files = dict.fromkeys(str(item.path) for item in session.items if is_for_small_session(item))
        session.stash[SESSION] = SmallSession([*files], session.config) if is_large else None
    return session.stash[SESSION]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (small := session.stash.get(SESSION, None)) is not None:
        small.close()


# -- in the second pytest ----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--serve", type=int, help="run the tests that are ordered over this descriptor, and report to it")


def pytest_configure(config: pytest.Config) -> None:
    if (descriptor := config.getoption("--serve")) is not None:
        config.pluginmanager.register(Server(config, Connection(descriptor)))


class Server:
    """Runs the tests that a worker orders, until the worker has ended."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config = config
        self._link = link

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with suppress(EOFError, OSError):
            while (order := _received(self._link)) is not None:
                ordered, following = order
                self._config.hook.pytest_runtest_protocol(item=items[ordered], nextitem=items.get(following))
                _send(self._link, None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _send(self._link, self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
