"""The stores on Dataverse and SharePoint keep the contract, checked against our simulators."""

import pytest

from tests.contracts.stores.offices import PLACES
from tests.contracts.stores.test_store_machines import compare
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore


class TestDataverseSimulated(DurableStoreContract):
    place = "dataverse"

    @pytest.fixture(autouse=True)
    def simulator(self):
        self.clock = ShiftedClock()
        start, self.engine, _ = PLACES[self.place]
        with start(self.clock) as self.running:
            yield

    def make_store(self):
        return GroupedStore(self.engine(self.running, self.clock), clock=self.clock)

    open_again = make_store

    def advance(self, seconds):
        self.clock.advance(seconds)


class TestSharePointSimulated(TestDataverseSimulated):
    place = "sharepoint"


@pytest.mark.parametrize("place", PLACES)
def test_a_simulated_office_store_is_like_the_model(place):
    clock = ShiftedClock()
    start, engine, _ = PLACES[place]
    with start(clock) as simulator:
        store = GroupedStore(engine(simulator, clock), clock=clock)
        compare(store, clock.advance, examples=15, steps=20)
        store.close()


@pytest.mark.parametrize("place", PLACES)
def test_the_contract_notices_an_engine_that_sends_no_etag(place):
    """The planted bug: a holder that lost its claim to another process writes, because its ETag is not sent."""
    start, engine, _ = PLACES[place]
    clock = ShiftedClock()
    with start(clock) as simulator:
        one, other = (GroupedStore(engine(simulator, clock), clock=clock) for _ in range(2))
        simulator.deaf_to = frozenset({"if-match"})  # from here on, as if it were not sent
        case = TestDataverseSimulated()
        with pytest.raises(AssertionError):
            case.test_a_holder_is_locked_out_by_the_others_takeover(one, other)
        for store in (one, other):
            store.close()
