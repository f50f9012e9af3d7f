"""Azure Table Storage's own: what its errors mean, continuation tokens, its doctor, what a URL may say."""

import pytest

pytest.importorskip("azure.data.tables")

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from msgspec.structs import replace

from tests.contracts.stores.row_places import PLACES
from twiceproof.errors import BadWrite, Misuse, StoreError
from twiceproof.records import Address, Insert
from twiceproof.stores.azure_table import connection
from twiceproof.stores.azure_table.connection import ConditionFailed, meaning
from twiceproof.stores.azure_table.doctor import findings
from twiceproof.stores.azure_table.url import AzureTableUrl
from twiceproof.stores.base import Disconnected
from twiceproof.stores.open import open_store
from twiceproof.stores.rows.table import ABSENT, ANY, Change, Landed, RowsDiffer, Throttled


def error(status, code=""):
    made = HttpResponseError("told")
    made.status_code, made.error_code = status, code
    return made


@pytest.mark.parametrize(("status", "code"), [(429, ""), (503, "ServerBusy")])
def test_what_the_service_did_not_do_is_clean(status, code):
    assert isinstance(meaning(error(status, code)), Throttled)


@pytest.mark.parametrize(("status", "code"), [(500, "OperationTimedOut"), (503, ""), (500, "InternalError"), (408, "")])
def test_what_the_service_may_have_done_is_unsure(status, code):
    found = meaning(error(status, code))
    assert isinstance(found, Disconnected) and found.sent


def test_other_errors_say_what_happened():
    for status, code in ((409, "EntityAlreadyExists"), (412, "UpdateConditionNotSatisfied"), (404, "ResourceNotFound")):
        assert isinstance(meaning(error(status, code)), ConditionFailed)
    assert isinstance(meaning(error(400, "EntityTooLarge")), BadWrite)
    assert "credentials" in str(meaning(error(403, "AuthenticationFailed")))
    assert type(meaning(error(400, "Unheard"))) is StoreError
    assert type(meaning(error(409, "TableBeingDeleted"))) is StoreError  # no look at the rows would help
    assert "az login" in str(meaning(ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token")))


class Told(Exception):
    """A refusal, with the text of the service's own."""

    def __init__(self, message):
        super().__init__()
        self.__cause__ = HttpResponseError(message)


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        ("0:The specified entity already exists.", 0),
        ("2:The specified entity already exists.", 1),
        ("9:No such change.", None),
        ("The entity is too large.", None),
    ],
)
def test_the_transaction_is_blamed_that_the_service_names(message, blamed):
    """It names a change, of all those in the request."""
    change = Change((0, "k"), ABSENT, b"x", 1)
    assert connection._blamed(Told(message), [[change, change], [change]]) == blamed


@pytest.mark.server
def test_where_the_service_names_none_each_is_tried_alone(request, monkeypatch):
    make, server, _ = PLACES["azure-table"]
    store = make(request, server).open()
    monkeypatch.setattr(connection, "_blamed", lambda error, transactions: None)
    table, taken = store.engine.table, [Change((0, "b"), ABSENT, b"x", 1)]
    assert isinstance(table.change_each([taken])[0], Landed)
    answers = table.change_each([[Change((0, name), ABSENT, b"y", 2)] for name in "abc"])
    assert [type(answer) for answer in answers] == [Landed, RowsDiffer, Landed]
    store.close()


@pytest.mark.server
def test_all_pages_are_read(request):
    """More than a thousand rows: the service ends a page there, with a continuation token."""
    make, server, _ = PLACES["azure-table"]
    store = make(request, server).open()
    for part in range(35):
        store.write(*(Insert(Address("one", "step", f"{part:02} {nth:02}"), "") for nth in range(30))).block()
    page = store.scan("step", limit=10_000).block()
    assert len(page.records) == 1_050 and page.after is None
    keys = [record.at.key for record in page.records]
    assert keys == sorted(keys)
    store.close()


@pytest.mark.server
def test_a_planted_table_that_ignores_etags_is_caught(request, monkeypatch):
    """The bug: every row is written without If-Match."""
    make, server, _ = PLACES["azure-table"]
    place = make(request, server)
    one, other, changed = place.open(), place.open(), connection._changed
    assert _late_write_lands(one, other, "a") is False
    monkeypatch.setattr(connection, "_changed", lambda client, change: changed(client, replace(change, expected=ANY)))
    assert _late_write_lands(one, other, "b") is True
    one.close()
    other.close()


def _late_write_lands(one, other, key):
    at = Address("shop", "claim", key)
    outcomes = [type(store.write(Insert(at, "mine", draw=True)).block()).__name__ for store in (one, other)]
    return outcomes == ["Written", "Written"]


@pytest.mark.parametrize(
    ("url", "levels"),
    [
        ("https://shop.table.core.windows.net", ["warn", "ok", "warn"]),
        ("http://shop.table.core.windows.net", ["warn", "warn", "warn"]),
        ("https://shop-secondary.table.core.windows.net", ["refuse", "ok", "warn"]),
        ("http://127.0.0.1:10002/devstoreaccount1", ["warn", "ok", "ok"]),
    ],
)
def test_the_doctor_looks_at_the_endpoint(url, levels):
    assert [finding.level for finding in findings(url)] == levels


@pytest.mark.server
def test_the_doctor_tells_of_an_emulator_and_the_clock(request):
    make, server, _ = PLACES["azure-table"]
    store = make(request, server).open()
    found = {finding.name: finding for finding in store.examine()}
    assert found["service"].level == "warn" and found["clock"].level == "ok"
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "azure-table://shop",
        "azure-table://shop/no-dashes",
        "azure-table://shop-secondary/ledger",
        "azure-table://Key:s3cret@shop/ledger",
        "azure-table://shop/ledger?sas=s3cret",
    ],
)
def test_a_url_that_means_nothing_is_refused_without_secrets(url):
    with pytest.raises(Misuse) as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value)


def test_a_connection_string_that_is_missing_or_wrong_is_refused(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    with pytest.raises(Misuse, match="is not set"):
        open_store("azure-table:///ledger")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=s3cret")
    with pytest.raises(Misuse) as refused:
        open_store("azure-table:///ledger")
    assert "s3cret" not in str(refused.value)


def test_a_url_names_account_and_table():
    target = AzureTableUrl.of("azure-table://shop/ledger?lanes=2")
    assert (target.endpoint, target.table, target.lanes) == ("https://shop.table.core.windows.net", "ledger", 2)
