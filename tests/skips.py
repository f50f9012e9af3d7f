"""Skipped tests: those of integrations that are not installed, and a summary of all of them at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# Top-level modules of the extra `test-integrations`, and of what comes along with it.
INTEGRATIONS = {
    "aiohttp",
    "azure",
    "celery",
    "django",
    "fastapi",
    "flask",
    "google",
    "grpc",
    "litestar",
    "moto",
    "openapi_spec_validator",
    "opentelemetry",
    "playwright",
    "requests",
    "schemathesis",
    "stripe",
    "werkzeug",
}
LONGEST = 140


class Module(pytest.Module):
    """A test module that is skipped when it imports an integration that is not installed."""

    def collect(self) -> Any:
        try:
            return super().collect()
        except self.CollectError as error:
            skip_if_not_installed(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    yield from _skipping()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    yield from _skipping()


def _skipping() -> Generator[None]:
    try:
        yield
    except ImportError as error:
        skip_if_not_installed(error)
        raise


def skip_if_not_installed(error: BaseException | None) -> None:
    """Skip for a missing integration alone: every other module that cannot be imported is a failure."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name.partition(".")[0] in INTEGRATIONS:
        pytest.skip(f"{name} is not installed: pip install -e '.[test-integrations]'", allow_module_level=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = list(summed_up(terminalreporter.stats.get("skipped", ())))
    if lines:
        terminalreporter.section("skipped")
        terminalreporter.write_line("\n".join(lines))


def summed_up(reports: Any) -> Iterator[str]:
    """One line for each reason, with how many tests it skipped: hundreds may need the same program."""
    counts = Counter(_reason(report) for report in reports)
    for reason, count in counts.most_common():
        yield f"{count:5}  {reason[:LONGEST]}"


def _reason(report: Any) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.removeprefix("Skipped: ").split())
