"""DynamoDB's own: unprocessed keys, pages, what its errors mean, what its doctor refuses, what a URL may say."""

import pytest

pytest.importorskip("boto3")

from botocore.exceptions import ClientError

from tests.contracts.stores.row_places import PLACES
from twiceproof.errors import BadWrite, Misuse, StoreError, StoreUnsafe
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Insert
from twiceproof.stores.base import Disconnected, NoLedger
from twiceproof.stores.dynamodb.connection import DynamoTable, meaning
from twiceproof.stores.dynamodb.doctor import DynamoFacts, findings, refuse_unsafe
from twiceproof.stores.dynamodb.engine import DynamoDbEngine
from twiceproof.stores.dynamodb.url import DynamoDbUrl
from twiceproof.stores.open import open_store
from twiceproof.stores.rows.table import ABSENT, Change, Landed, RowsDiffer, Throttled

KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
WELL = {"KeySchema": KEYS, "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}, "DeletionProtectionEnabled": True}
BACKED_UP = {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}


# -- what the service leaves out -----------------------------------------------------------------


class Forgetful(DynamoTable):
    """Answers a part of what is asked for, as the service may: the rest is unprocessed, or on the next page."""

    def ask(self, verb, **wanted):
        if verb == "query":
            wanted["Limit"] = min(wanted["Limit"], 2)
        if verb != "batch_get_item":
            return super().ask(verb, **wanted)
        part = wanted["RequestItems"][self.name]
        now, later = part["Keys"][:3], part["Keys"][3:]
        answer = super().ask(verb, RequestItems={self.name: {**part, "Keys": now}})
        return answer | ({"UnprocessedKeys": {self.name: {**part, "Keys": later}}} if later else {})


class Dropping(Forgetful):
    """The bug: what is unprocessed is taken for absent."""

    def _read_part(self, places):
        answer = self.ask("batch_get_item", RequestItems={self.name: {"Keys": [_key(place) for place in places]}})
        return [_row(item) for item in answer["Responses"][self.name]]


def _key(place):
    return {"pk": {"S": str(place[0])}, "sk": {"S": place[1]}}


def _row(item):
    from twiceproof.stores.dynamodb.connection import _row as row

    return row(item)


def all_are_found(url, kind):
    class Engine(DynamoDbEngine):
        def _table(self, clock):
            return kind(self.target, clock)

    engine = Engine(url)
    addresses = [Address(f"s{nth}", "claim", "self") for nth in range(10)]
    store = open_store(url)
    store.write_each([[Insert(at, "x")] for at in addresses]).block()
    scanned = engine.scan("claim", None, None, None, 100).records
    found = [found.record is not None for found in engine.fetch(addresses)]
    engine.close()
    store.close()
    return len(scanned) == 10 and all(found)


@pytest.mark.server
def test_what_is_unprocessed_or_on_the_next_page_is_asked_for(request):
    make, server, _ = PLACES["dynamodb"]
    assert all_are_found(make(request, server).url, Forgetful)


@pytest.mark.server
def test_a_planted_table_that_drops_what_is_unprocessed_is_caught(request):
    make, server, _ = PLACES["dynamodb"]
    assert not all_are_found(make(request, server).url, Dropping)


# -- errors --------------------------------------------------------------------------------------


def error(code, status=400, reasons=None, **headers):
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    return ClientError(answer | ({"CancellationReasons": reasons} if reasons else {}), "TransactWriteItems")


@pytest.mark.parametrize(
    "given",
    [
        error("ProvisionedThroughputExceededException"),
        error("com.amazonaws.dynamodb.v20120810#ThrottlingException"),
        error("RequestLimitExceeded"),
        error("Unheard", 429),
    ],
)
def test_what_the_service_did_not_do_is_clean(given):
    assert isinstance(meaning(given), Throttled)


NOTHING, EXISTS = {"Code": "None"}, {"Code": "ConditionalCheckFailed"}


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (EXISTS, RowsDiffer),
        ({"Code": "TransactionConflict"}, Throttled),
        ({"Code": "ProvisionedThroughputExceeded"}, Throttled),
        ({"Code": "ItemCollectionSizeLimitExceeded"}, BadWrite),
    ],
)
def test_of_several_transactions_in_a_request_only_the_one_to_blame_is_answered(reason, verdict):
    """The others are sent again without it."""
    change = Change((0, "k"), ABSENT, b"x", 1)
    told = meaning(error("TransactionCanceledException", reasons=[NOTHING, NOTHING, reason, NOTHING]))
    first, second, third = told.verdicts([[change], [change, change], [change]])
    assert first is None and isinstance(second, verdict) and third is None


@pytest.mark.server
def test_one_that_the_service_does_not_take_keeps_no_other_from_landing(dynamodb_url):
    """Of an item of more than 400 KB the service does not say which it was."""
    store = open_store(dynamodb_url)
    at = [(0, f"r{nth}") for nth in range(3)]
    data = [b"x", b"x" * 450_000, b"x"]
    answers = store.engine.table.change_each(
        [[Change(place, ABSENT, each, 1)] for place, each in zip(at, data, strict=True)]
    )
    assert [type(answer) for answer in answers] == [Landed, BadWrite, Landed]
    assert [row is not None for row in store.engine.table.read(at)] == [True, False, True]
    store.close()


@pytest.mark.parametrize(
    "given",
    [
        error("InternalServerError", 500),
        error("RequestTimeoutException", 408),
        error("ServiceUnavailable", 503),
        error("TransactionInProgressException"),
        error("TransactionCanceledException"),
    ],
)
def test_what_the_service_may_have_done_is_unsure(given):
    found = meaning(given)
    assert isinstance(found, Disconnected) and found.sent


def test_other_errors_say_what_to_do():
    assert isinstance(meaning(error("ValidationException")), BadWrite)
    assert "rights" in str(meaning(error("AccessDeniedException")))
    assert isinstance(meaning(error("Unheard")), StoreError)
    assert meaning(error("ThrottlingException", **{"retry-after": "3"})).after == 3.0


# -- doctor --------------------------------------------------------------------------------------


def levels(facts):
    return {finding.name: finding.level for finding in findings(facts)}


def test_of_a_table_that_is_well_the_doctor_says_only_that_the_service_was_never_met():
    found = levels(DynamoFacts(WELL, {}, BACKED_UP))
    assert {name for name, level in found.items() if level != "ok"} == {"service"}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("regions", DynamoFacts(WELL | {"Replicas": [{"RegionName": "eu-west-1"}]}, {}, BACKED_UP)),
        ("expiry", DynamoFacts(WELL, {"TimeToLiveStatus": "ENABLED", "AttributeName": "n"}, BACKED_UP)),
        ("keys", DynamoFacts({"KeySchema": KEYS[:1]}, {}, BACKED_UP)),
    ],
)
def test_a_table_that_would_lose_claims_is_refused(name, facts):
    assert levels(facts)[name] == "refuse"
    with pytest.raises(StoreUnsafe, match=name):
        refuse_unsafe(facts)


def test_a_table_with_lesser_faults_is_warned_about_and_taken():
    worse = DynamoFacts(
        {"KeySchema": KEYS, "TableClassSummary": {"TableClass": "STANDARD_INFREQUENT_ACCESS"}}, None, None
    )
    found = levels(worse)
    assert {name for name, level in found.items() if level == "warn"} == {
        "expiry",
        "backups",
        "deletion protection",
        "capacity",
        "table class",
        "service",
    }
    refuse_unsafe(worse)
    assert (
        levels(DynamoFacts(WELL, {"TimeToLiveStatus": "ENABLED", "AttributeName": "other"}, BACKED_UP))["expiry"]
        == "ok"
    )


@pytest.mark.parametrize(("most", "level"), [(40, "warn"), (-1, "ok")])
def test_a_limit_of_what_is_on_demand_is_warned_about(most, level):
    """-1 is how the service says that there is none."""
    table = WELL | {"OnDemandThroughput": {"MaxWriteRequestUnits": most, "MaxReadRequestUnits": -1}}
    assert levels(DynamoFacts(table, {}, BACKED_UP))["capacity"] == level


@pytest.mark.server
def test_a_foreign_table_is_refused(dynamodb_url):
    table = DynamoTable(DynamoDbUrl.of(dynamodb_url), clock=open_store("memory://")._clock)
    attribute = [{"AttributeName": "id", "AttributeType": "S"}]
    keys = [{"AttributeName": "id", "KeyType": "HASH"}]
    table.ask(
        "create_table",
        TableName=table.name,
        KeySchema=keys,
        AttributeDefinitions=attribute,
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(StoreUnsafe, match="not a ledger"):
        open_store(dynamodb_url)


@pytest.mark.server
def test_without_create_nothing_is_made(dynamodb_url):
    with pytest.raises(NoLedger):
        open_store(dynamodb_url, create=False)
    open_store(dynamodb_url).close()
    open_store(dynamodb_url, create=False).close()


@pytest.mark.server
def test_a_table_that_another_process_is_creating_is_waited_for(dynamodb_url, monkeypatch):
    """The service describes it at once, and says that it does not exist to all who read it."""
    open_store(dynamodb_url).close()
    ask, looks = DynamoTable.ask, []

    def creating(table, verb, **wanted):
        looks.append(verb)
        if verb == "describe_table" and looks.count(verb) < 3:
            answer = ask(table, verb, **wanted)
            return {"Table": answer["Table"] | {"TableStatus": "CREATING"}}
        if verb == "get_item" and looks.count("describe_table") < 3:
            raise meaning(error("ResourceNotFoundException"))
        return ask(table, verb, **wanted)

    monkeypatch.setattr(DynamoTable, "ask", creating)
    DynamoDbEngine(dynamodb_url, clock=ManualClock()).close()
    assert looks.count("describe_table") >= 3


@pytest.mark.server
def test_a_role_that_may_not_write_is_told_so_when_the_ledger_is_made(dynamodb_url, monkeypatch):
    ask = DynamoTable.ask

    def denied(table, verb, **wanted):
        if verb == "put_item":
            raise meaning(error("AccessDeniedException"))
        return ask(table, verb, **wanted)

    monkeypatch.setattr(DynamoTable, "ask", denied)
    with pytest.raises(StoreError, match="rights of their role"):
        open_store(dynamodb_url)


@pytest.mark.server
def test_the_doctor_tells_of_an_emulator_and_the_clock(dynamodb_url):
    store = open_store(dynamodb_url)
    found = {finding.name: finding for finding in store.examine()}
    assert found["service"].level == "warn" and found["clock"].level == "ok"
    store.close()


# -- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://eu-central-1",
        "dynamodb://eu-central-1/x",
        "dynamodb://eu-central-1/ledger?lanes=0",
        "dynamodb://eu-central-1/ledger?colour=red",
        "dynamodb://eu-central-1/ledger?endpoint=localhost:8000",
        "dynamodb://AKIA1:s3cret@eu-central-1/ledger",
    ],
)
def test_a_url_that_means_nothing_is_refused_without_secrets(url):
    with pytest.raises(Misuse) as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value) and "AKIA1" not in str(refused.value)


def test_a_url_names_region_and_table():
    target = DynamoDbUrl.of("dynamodb://eu-central-1/ledger?lanes=4")
    assert (target.region, target.table, target.lanes, target.endpoint) == ("eu-central-1", "ledger", 4, None)
    assert DynamoDbUrl.of("dynamodb:///ledger").region is None
