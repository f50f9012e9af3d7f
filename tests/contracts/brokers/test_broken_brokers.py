"""The contract bites: it catches every broken broker, by the tests that should, and passes the healthy one."""

import functools
import inspect

import pytest

from tests.contracts.brokers.broken import BROKEN, runner
from tests.contracts.brokers.broken.runner import contract_tests
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.prove.broker_contract import LeasedBrokerContract

pytestmark = pytest.mark.slow

failures = functools.cache(runner.failures)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_broker_is_caught_by_the_tests_that_should(broken):
    assert set(broken.caught_by) <= failures(broken.make, broken.dedupe)


@pytest.mark.parametrize("dedupe", [0.0, 120.0])
def test_the_healthy_broker_passes_everything(dedupe):
    assert failures(MemoryBroker, dedupe) == set()


def test_every_test_of_the_contract_catches_some_broken_broker():
    assert {name for name, _ in contract_tests()} - {name for broken in BROKEN for name in broken.caught_by} == set()


def test_no_two_subjects_give_a_test_the_same_name():
    """The second would silently replace the first."""
    parts = inspect.getmro(LeasedBrokerContract)
    defined = [name for part in parts for name in vars(part) if name.startswith("test_")]
    assert sorted(defined) == sorted(set(defined)) == sorted(name for name, _ in contract_tests())
