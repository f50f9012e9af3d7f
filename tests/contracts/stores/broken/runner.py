"""Runs the whole contract against a store without pytest's ceremony: twenty times as fast."""

import inspect
import itertools
from collections.abc import Callable, Iterator

import pytest

from twiceproof.clock import Clock
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract import StoreContract
from twiceproof.stores.base import Store


class _Case(StoreContract):
    def __init__(self, make: Callable[[Clock], Store]) -> None:
        self.make = make

    def make_store(self) -> Store:
        self.clock = ShiftedClock()
        self.clock.sleep = lambda _: None
        return self.make(self.clock)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


def failures(make: Callable[[Clock], Store]) -> dict[str, str]:
    """The tests that fail, by name, and the subject of each."""
    failed = {}
    for name, test in contract_tests():
        subject = test.__module__.rsplit(".", 1)[-1]
        for arguments in variants(test):
            try:
                run(make, name, arguments)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it was, the store did not pass
                failed[name] = subject
                break
    return failed


def contract_tests() -> Iterator[tuple[str, Callable[..., None]]]:
    for name, test in inspect.getmembers(StoreContract, inspect.isfunction):
        if name.startswith("test_"):
            yield name, test


def variants(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    """What `parametrize` would give the test, one dictionary each."""
    axes = []
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args
        several = isinstance(names, tuple)
        axes.append([dict(zip(names, value, strict=True)) if several else {names: value} for value in values])
    for choice in itertools.product(*axes):
        yield {name: value for part in choice for name, value in part.items()}


def run(make: Callable[[Clock], Store], name: str, arguments: dict[str, object]) -> None:
    case = _Case(make)
    test = getattr(case, name)
    if "store" not in inspect.signature(test).parameters:
        test(**arguments)
        return
    store = case.make_store()
    try:
        test(store=store, **arguments)
    finally:
        store.close()
