"""The DynamoDB store keeps the contract, on ministack and, where the tester has it, on Amazon's DynamoDB Local."""

from secrets import token_hex

import pytest

from tests.contracts.stores.movable_rows import advance, movable
from tests.contracts.stores.row_places import dynamodb_local as dynamodb_local_place
from tests.contracts.stores.row_race import KEYS, kill_under_batches, winners
from tests.contracts.stores.test_store_machines import compare
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store

pytest.importorskip("boto3")
pytestmark = pytest.mark.server


class DynamoDbContract(DurableStoreContract):
    url: str

    def make_store(self):
        from twiceproof.stores.dynamodb.engine import DynamoDbEngine

        return GroupedStore(movable(DynamoDbEngine(self.url)))

    open_again = make_store

    def advance(self, seconds):
        advance(seconds)


class TestDynamoDbOnMinistack(DynamoDbContract):
    @pytest.fixture(autouse=True)
    def server(self, dynamodb_url):
        self.url = dynamodb_url


class TestDynamoDbLocal(DynamoDbContract):
    @pytest.fixture(autouse=True)
    def server(self, dynamodb_local, aws_credentials):
        self.url = dynamodb_local.url(f"ledger-{token_hex(6)}")

    def test_it_is_like_the_model(self):
        store = self.make_store()
        compare(store, advance, examples=10, steps=20)
        store.close()

    @pytest.mark.slow
    def test_of_fifty_callers_in_four_processes_one_wins_each_key(self, request):
        assert winners(dynamodb_local_place(request)) == list(range(KEYS))


def test_after_a_kill_of_dynamodb_local_batches_are_whole_and_nothing_is_lost(killable_dynamodb, aws_credentials):
    store = open_store(killable_dynamodb.url("ledger"))
    kill_under_batches(store, killable_dynamodb.kill, killable_dynamodb.start)
    store.close()
