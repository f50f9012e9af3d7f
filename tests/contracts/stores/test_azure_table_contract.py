"""The Azure Table store keeps the contract, on Azurite."""

import pytest

from tests.contracts.stores.movable_rows import advance, movable
from tests.contracts.stores.row_places import PLACES
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore

pytestmark = pytest.mark.server


class TestAzureTableOnAzurite(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, request):
        make, server, _ = PLACES["azure-table"]
        self.url = make(request, server).url

    def make_store(self):
        from twiceproof.stores.azure_table.engine import AzureTableEngine

        return GroupedStore(movable(AzureTableEngine(self.url)))

    open_again = make_store

    def advance(self, seconds):
        advance(seconds)
