"""The etcd store keeps the contract, on a cluster of three."""

import pytest

from tests.contracts.stores.movable_rows import advance, movable
from tests.contracts.stores.row_places import PLACES
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore

pytestmark = pytest.mark.server


class TestEtcd(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, request):
        make, server, _ = PLACES["etcd"]
        self.url = make(request, server).url

    def make_store(self):
        from twiceproof.stores.etcd.engine import EtcdEngine

        return GroupedStore(movable(EtcdEngine(self.url)))

    open_again = make_store

    def advance(self, seconds):
        advance(seconds)
