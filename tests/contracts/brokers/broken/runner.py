"""Runs the whole contract against a memory broker without pytest's ceremony, on a clock that takes no time."""

from __future__ import annotations

import inspect
import itertools

import pytest

from twiceproof.brokers.memory import MemoryBroker, MemoryQueues
from twiceproof.prove.broker_contract import LeasedBrokerContract
from twiceproof.prove.clocks import ManualClock

LONG = 1_000.0  # a lease that does not end during a test


class Case:
    """The hooks of the contract."""

    kind = MemoryBroker
    dedupe = 120.0

    def make_broker(self):
        self.clock = ManualClock()
        self.queues = MemoryQueues({self.place}, dedupe=self.dedupe, lease=self.lease or LONG)
        return self.open_again()

    def open_again(self):
        return self.kind(self.queues, clock=self.clock)

    def lose_answers(self):
        for broker in self.opened:
            broker.lose_answers = 1_000

    def heal(self):
        for broker in self.opened:
            broker.lose_answers = 0

    def monotonic(self):
        return self.clock.monotonic()


def failures(kind, dedupe=120.0, contract=LeasedBrokerContract):
    """The names of the tests that fail."""
    case = type("Case", (Case, contract), {"kind": kind, "dedupe": dedupe})
    return {
        name for name, test in contract_tests(contract) for given in variants(test) if not passes(case(), name, given)
    }


def contract_tests(contract):
    for name, test in inspect.getmembers(contract, inspect.isfunction):
        if name.startswith("test_"):
            yield name, test


def variants(test):
    """What `parametrize` would give the test, one dictionary each."""
    axes = [[{mark.args[0]: value} for value in mark.args[1]] for mark in getattr(test, "pytestmark", [])]
    for choice in itertools.product(*axes):
        yield {name: value for part in choice for name, value in part.items()}


def passes(case, name, given):
    case.setup_method(getattr(case, name))
    case.opened = [case.make_broker()]
    try:
        getattr(case, name)(broker=case.opened[0], **given)
        case.close_all()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it was, the broker did not pass
        return False
    return True
