"""Runs the whole contract against a source without pytest's ceremony."""

import inspect
from collections.abc import Callable, Iterator

import pytest

from twiceproof.inbound.source import Source
from twiceproof.prove.source_contract import SourceContract


def failures(make: Callable[[], Source]) -> dict[str, str]:
    """The tests that fail, by name, and the subject of each."""

    class Case(SourceContract):
        def make_source(self) -> Source:
            return make()

    failed = {}
    for name, test in contract_tests():
        try:
            run(Case(), name)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it was, the source did not pass
            failed[name] = test.__module__.rsplit(".", 1)[-1]
    return failed


def contract_tests() -> Iterator[tuple[str, Callable[..., None]]]:
    for name, test in inspect.getmembers(SourceContract, inspect.isfunction):
        if name.startswith("test_"):
            yield name, test


def run(case: SourceContract, name: str) -> None:
    test = getattr(case, name)
    with pytest.MonkeyPatch.context() as patch:
        given = {"source": case.make_source(), "monkeypatch": patch}
        test(**{word: given[word] for word in inspect.signature(test).parameters})
