"""The contract bites: it catches every broken broker, by the tests that should, and passes the healthy one."""

import functools
import inspect

import pytest

from tests.contracts.brokers.broken import BROKEN, runner
from tests.contracts.brokers.broken.ordered import OrderedBroker
from tests.contracts.brokers.broken.runner import contract_tests
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.prove.broker_contract import LeasedBrokerContract, OrderedBrokerContract
from twiceproof.prove.broker_contract.case import HOLDING

pytestmark = pytest.mark.slow

CONTRACTS = [LeasedBrokerContract, OrderedBrokerContract]
REPLACED = ("an_acknowledgement_settles_no_other_delivery", "each_delivery_is_settled_by_its_own_word")

failures = functools.cache(runner.failures)
TRIED_AGAIN = (
    "what_is_acknowledged_never_comes_again",
    "what_one_receiver_acknowledged_another_never_gets",
    "what_is_rejected_comes_no_more",
    "what_is_extended_is_held_for_longer",
)
SECONDS_PER_WORD = 1.5  # longer than a lease


class SlowAtFirst(MemoryBroker):
    """Two settlements come when the lease is over, as from a machine that has much else to do."""

    late = 2

    def settle(self, settlements):
        if self.late:
            self.late -= 1
            self._clock.sleep(SECONDS_PER_WORD)
        super().settle(settlements)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_broker_is_caught_by_the_tests_that_should(broken):
    assert set(broken.caught_by) <= failures(broken.make, broken.dedupe, broken.contract)


@pytest.mark.parametrize("dedupe", [0.0, 120.0])
def test_a_machine_that_is_too_slow_for_the_lease_fails_no_test_of_holding(dedupe):
    assert failures(SlowAtFirst, dedupe) & {*HOLDING, *(f"test_{name}" for name in TRIED_AGAIN)} == set()


@pytest.mark.parametrize("dedupe", [0.0, 120.0])
def test_the_healthy_broker_passes_everything(dedupe):
    assert failures(MemoryBroker, dedupe) == set()


def test_the_healthy_broker_that_settles_in_order_passes_everything():
    assert failures(OrderedBroker, contract=OrderedBrokerContract) == set()


def test_a_broker_that_settles_in_order_does_not_pass_for_one_that_settles_each():
    assert failures(OrderedBroker) >= {f"test_{name}" for name in REPLACED}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_test_of_the_contract_catches_some_broken_broker(contract):
    assert {name for name, _ in contract_tests(contract)} - {
        name for broken in BROKEN for name in broken.caught_by
    } == set()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_no_two_subjects_give_a_test_the_same_name(contract):
    """The second would silently replace the first."""
    parts = inspect.getmro(contract)
    defined = [name for part in parts for name in vars(part) if name.startswith("test_")]
    assert sorted(defined) == sorted(set(defined)) == sorted(name for name, _ in contract_tests(contract))
