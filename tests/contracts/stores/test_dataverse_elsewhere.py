"""Dataverse's requests at an OData server of somebody else's: SAP's CAP, where the tester has it.

It shows that others read the addresses of rows, the conditions, the filters and the orders as we mean them. It is no
Dataverse: it answers the creation of a row that exists with a 500.
"""

from __future__ import annotations

import pytest

from tests.servers.cap import TABLE, CapServer
from tests.servers.process import Unavailable
from twiceproof.clock import system_clock
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.records import Address, Conflict, Insert, Lost, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.dataverse.engine import DataverseEngine, DataverseTable
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.rest import RestClient
from twiceproof.stores.rest_engine import RestEngine

pytestmark = [pytest.mark.server, pytest.mark.slow]

AT = Address("default/charge/shop:order:1", "claim", "self")


class FranklyTable(DataverseTable):
    """Takes this server's 500 for the 412 that Dataverse says."""

    def create(self, values):
        try:
            return super().create(values)
        except Disconnected as error:
            if "UNIQUE constraint failed" in str(error):
                return None
            raise


class CapEngine(RestEngine):
    """Without the doctor's look at a table's definition, which is Dataverse's own."""

    promises, body_limit = DataverseEngine.promises, DataverseEngine.body_limit

    def examine(self):
        return []


def store_at(cap, table=DataverseTable):
    rows = table(RestClient(cap.base, None, clock=system_clock), TABLE, "new_")
    return GroupedStore(CapEngine(rows, clock=system_clock))


@pytest.fixture(scope="module")
def server():
    made = CapServer()
    try:
        yield made.start()
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        made.close()


@pytest.fixture
def cap(server):
    server.empty()
    server.shift(0.0)
    return server


class TestDataverseAtCap(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def start(self, cap):
        self.cap, self.shift = cap, 0.0

    def make_store(self):
        return store_at(self.cap, FranklyTable)

    open_again = make_store

    def advance(self, seconds):
        self.shift += seconds
        self.cap.shift(self.shift)


def test_a_row_that_is_there_is_looked_for_after_the_500(cap):
    """Whether the first try wrote it and another replaced it since, nobody can say: `Lost`, and not `Conflict`."""
    store, other = store_at(cap), store_at(cap)
    held = store.write(Insert(AT, "mine", "held", draw=True, lease=60.0)).block()
    refused = other.write(Insert(AT, "theirs", "held", draw=True, lease=60.0)).block()
    assert isinstance(refused, Lost) and refused.found.body == "mine"
    assert isinstance(store.write(Replace(AT, "done", "done", fence=held.fence, draw=True)).block(), Written)
    late = other.write(Replace(AT, "late", "done", fence=held.fence, draw=True)).block()
    assert isinstance(late, Conflict) and late.found.body == "done"
    for each in (store, other):
        each.close()


def test_a_planted_table_that_sends_no_condition_overwrites(cap, monkeypatch):
    """The control: this server does look at If-Match."""
    store, other = store_at(cap), store_at(cap)
    held = store.write(Insert(AT, "mine", "held", draw=True)).block()
    assert isinstance(other.read(AT).block().record.fence, int)
    assert isinstance(store.write(Replace(AT, "done", "done", fence=held.fence)).block(), Written)
    patch = DataverseTable._patch
    monkeypatch.setattr(
        DataverseTable, "_patch", lambda table, key, _, values: patch(table, key, {"If-Match": "*"}, values)
    )
    assert isinstance(other.write(Replace(AT, "late", "done", fence=held.fence)).block(), Written)
    for each in (store, other):
        each.close()
