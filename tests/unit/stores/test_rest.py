"""Requests of the office stores: sign-in, throttling, lost answers, what the doctor finds. Against our simulators."""

import threading

import pytest

from tests.contracts.stores.offices import (
    PLACES,
    TABLE,
    dataverse,
    dataverse_engine,
    dataverse_url,
    sharepoint,
    sharepoint_url,
)
from tests.contracts.stores.offices import sharepoint_engine as list_engine
from twiceproof import App, Misuse, StoreUnavailable, StoreUnsafe
from twiceproof.errors import StoreError
from twiceproof.prove.clocks import ManualClock, ShiftedClock
from twiceproof.prove.simulators import DataverseSimulator, SharePointSimulator
from twiceproof.prove.simulators.server import SimulatedAnswer
from twiceproof.records import Address, Batch, Conflict, Insert, Replace, Written
from twiceproof.stores.base import Disconnected, NoLedger
from twiceproof.stores.dataverse.engine import DataverseEngine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.rest import SECRET_NAME, RestClient
from twiceproof.stores.rest_engine import RestEngine
from twiceproof.stores.service_rows import as_text, of_text, row_key

AT = Address("default/charge/shop:order:1", "claim", "self")
WRITES = {"dataverse": "PATCH", "sharepoint": "POST"}


@pytest.fixture(params=PLACES)
def place(request):
    start, engine, _ = PLACES[request.param]
    clock = ManualClock()
    with start(clock) as simulator:
        store = GroupedStore(engine(simulator, clock), clock=clock)
        yield simulator, store, clock, WRITES[request.param]
        store.close()


def test_a_throttled_write_is_sent_again_when_the_service_allows_it(place):
    simulator, store, clock, method = place
    simulator.throttle(4, method)
    assert isinstance(store.write(Insert(AT, "mine", draw=True)).block(), Written)
    assert 4 <= sum(clock.pauses) <= 6  # what was asked for, and a little jitter


def test_a_throttle_longer_than_patience_is_told_at_once(place):
    simulator, store, clock, method = place
    simulator.throttle(300, method)
    with pytest.raises(StoreUnavailable, match="throttled") as refused:
        store.write(Insert(AT, "mine")).block()
    assert refused.value.unsure is False
    before = len(simulator.requests)
    with pytest.raises(StoreUnavailable, match="Nothing was written"):
        store.write(Insert(AT, "mine")).block()
    assert len(simulator.requests) == before  # throttled requests lengthen the wait
    clock.advance(301)
    assert isinstance(store.write(Insert(AT, "mine")).block(), Written)


def test_a_service_that_throttles_for_no_time_at_all_is_not_asked_without_a_pause(place):
    simulator, store, clock, method = place
    before = len(simulator.requests)
    for _ in range(200):
        simulator.throttle(0, method)
    with pytest.raises(StoreUnavailable, match="throttled") as refused:
        store.write(Insert(AT, "mine")).block()
    assert refused.value.unsure is False
    assert len(simulator.requests) - before < 25 and 9 < sum(clock.pauses) < 15


@pytest.mark.parametrize("status", [408, 499])
def test_a_write_that_was_given_up_on_its_way_may_have_been_done(place, status):
    simulator, store, _, method = place
    handle, refuse = simulator.handle, [status]

    def given_up(request):
        answer = handle(request)
        return SimulatedAnswer(refuse.pop(), {}) if refuse and request.method == method else answer

    simulator.handle = given_up
    landed = store.write(Insert(AT, "mine", draw=True)).block()
    assert isinstance(landed, Written) and store.read(AT).block().record.fence == landed.fence


def test_the_first_write_sorts_by_the_time_of_the_service(place):
    simulator, _, clock, _ = place
    wrong = ManualClock()
    wrong.set_wall(3_600.0)
    other = (dataverse_engine if isinstance(simulator, DataverseSimulator) else list_engine)(simulator, wrong)
    other.commit([Batch([Insert(AT, "", queue="q", due_in=5.0)], "n")])
    (row,) = other.rows.waiting("claim", None, 10).rows
    assert abs(row.values["due"] - (clock.now() + 5.0)) < 3.0
    other.close()


def test_a_write_that_never_gets_an_answer_leaves_its_neighbours_theirs(place):
    """As where a plug-in fails on one row: the other writes of its group have landed, or met a duplicate."""
    simulator, store, _, method = place
    bad, good, taken = (Address(f"default/charge/{name}", "claim", "self") for name in ("bad", "good", "taken"))
    store.write(Insert(taken, "first")).block()
    handle = simulator.handle

    def failing(request):
        about_bad = request.method == method and "!bad" in f"{request.path}{request.json}"
        return SimulatedAnswer(500, {"error": {"message": "plug-in"}}) if about_bad else handle(request)

    simulator.handle = failing
    answers = store.write_each([[Insert(at, "new")] for at in (bad, good, taken)]).block()
    assert isinstance(answers[0], StoreUnavailable) and answers[0].unsure is True
    assert [type(answer) for answer in answers[1:]] == [Written, Conflict]
    assert store.read(good).block().record is not None


def test_a_busy_server_that_says_when_to_come_back_has_done_nothing():
    clock = ManualClock()
    with sharepoint(clock) as simulator:
        store = GroupedStore(list_engine(simulator, clock), clock=clock)
        simulator.throttle(2, status=503)
        assert isinstance(store.write(Insert(AT, "")).block(), Written)
        store.close()


def test_a_write_whose_answer_was_lost_is_recognised(place):
    simulator, store, _, method = place
    simulator.lose_answer(method)
    landed = store.write(Insert(AT, "mine", draw=True)).block()
    assert isinstance(landed, Written)
    assert store.read(AT).block().record.fence == landed.fence


def test_a_500_is_no_answer(place):
    """SAP's OData server says 500 for a row that is there: it does not tell what happened, so the row is looked for."""
    simulator, store, _, method = place
    simulator.refuse(method, SimulatedAnswer(500, {"error": {"code": "0x0", "message": "UNIQUE constraint failed"}}))
    assert isinstance(store.write(Insert(AT, "mine")).block(), Written)


def test_a_service_that_says_500_for_a_row_that_is_there_is_looked_at():
    """As SAP's OData server does, each time: a duplicate is told what is there, and not that nobody knows."""
    with (
        dataverse(ShiftedClock()) as simulator,
        App(dataverse_url(simulator)) as first,
        App(dataverse_url(simulator)) as second,
    ):
        handle = simulator.handle

        def without_412(request):
            answer = handle(request)
            return SimulatedAnswer(500, {"error": {"message": "UNIQUE"}}) if answer.status == 412 else answer

        simulator.handle = without_412
        charge, again = (app.once(key="{n}", name="charge")(lambda n: f"receipt {n}") for app in (first, second))
        assert charge(1) == again(1) == "receipt 1"
        creations = [one for one in simulator.requests if one.headers.get("if-none-match") == "*"]
        assert sum("charge" in one.path for one in creations) == 2  # one each, and then it is looked for


def test_a_412_without_dataverses_code_is_a_stale_etag():
    """As other OData servers say it: the row is read again, and the condition is checked on it."""
    clock = ManualClock()
    with dataverse(clock) as simulator:
        store = GroupedStore(dataverse_engine(simulator, clock), clock=clock)
        held = store.write(Insert(AT, "mine", "held", draw=True)).block()
        simulator.refuse("PATCH", SimulatedAnswer(412, {"error": {"code": "412", "message": "Precondition Failed"}}))
        assert isinstance(store.write(Replace(AT, "done", "done", fence=held.fence)).block(), Written)
        store.close()


def test_a_claim_costs_two_requests_and_a_duplicate_at_most_three(place):
    simulator, store, _, _ = place
    before = len(simulator.requests)
    fence = store.write(Insert(AT, "held", draw=True, lease=60.0)).block().fence
    assert isinstance(store.write(Replace(AT, "done", "done", fence=fence, draw=True)).block(), Written)
    assert len(simulator.requests) - before == 2
    store.write(Insert(AT, "held", draw=True, lease=60.0)).block()
    assert len(simulator.requests) - before <= 5


# -- what the doctor finds -----------------------------------------------------------------------


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_a_service_that_ignores_conditions_is_refused(header):
    """The planted bug: ETag ignored."""
    clock = ShiftedClock()
    with dataverse(clock) as simulator:
        simulator.deaf_to = frozenset({header})
        with pytest.raises(StoreUnsafe, match="is ignored: two callers would both win"):
            dataverse_engine(simulator, clock)
        simulator.deaf_to = frozenset()
        dataverse_engine(simulator, clock).close()


def test_a_list_that_ignores_etags_or_has_no_unique_column_is_refused():
    clock = ShiftedClock()
    with sharepoint(clock) as simulator:
        simulator.deaf_to = frozenset({"if-match"})
        with pytest.raises(StoreUnsafe, match="If-Match is ignored"):
            list_engine(simulator, clock)
    with sharepoint(clock, unique="") as simulator, pytest.raises(StoreUnsafe, match="does not enforce unique values"):
        list_engine(simulator, clock)


@pytest.mark.parametrize(("state", "told"), [("Pending", "index is Pending"), ("Failed", "index is Failed")])
def test_a_key_whose_index_is_not_built_is_refused(state, told):
    clock = ShiftedClock()
    with (
        dataverse(clock, key_states={TABLE: state}) as simulator,
        pytest.raises(StoreUnsafe, match=told),
    ):
        dataverse_engine(simulator, clock)


def test_missing_columns_tables_and_settings_are_named():
    with DataverseSimulator({TABLE: ["new_key"]}) as simulator:
        with pytest.raises(StoreUnsafe, match="missing: new_space"):
            DataverseEngine(dataverse_url(simulator))
        with pytest.raises(NoLedger, match="no table"):
            DataverseEngine(dataverse_url(simulator).replace("new_claims", "new_others"))
    clock = ShiftedClock()
    for name, value, told in (("TableType", "Elastic", "elastic"), ("IsOptimisticConcurrencyEnabled", False, "off")):
        with dataverse(clock) as simulator:
            simulator.settings[name] = value
            with pytest.raises(StoreUnsafe, match=told):
                dataverse_engine(simulator, clock)


def test_the_doctor_warns_of_auditing_and_of_a_limit_that_is_near():
    clock = ShiftedClock()
    with dataverse(clock) as simulator:
        engine = dataverse_engine(simulator, clock)
        assert {one.name for one in engine.examine() if one.level == "warn"} == {"service", "latency"}
        simulator.settings["IsAuditEnabled"] = {"Value": True}
        simulator.requests_left = 100
        warned = {one.name for one in engine.examine() if one.level == "warn"}
        assert warned == {"service", "latency", "auditing", "request limit"}
        engine.close()


def test_the_doctor_warns_of_columns_without_an_index():
    from twiceproof.stores.sharepoint.engine import LIST_COLUMNS

    simulator = SharePointSimulator("tp_key", columns=[f"tp_{name}" for name in LIST_COLUMNS])
    with simulator:
        engine = list_engine(simulator, ShiftedClock())
        assert [one.name for one in engine.examine() if one.level == "warn"] == ["index", "index", "service", "volume"]
        engine.close()


# -- sign-in -------------------------------------------------------------------------------------


def signed(simulator, secret=""):
    login = f"?tenant=contoso&login={simulator.url}"
    return dataverse_url(simulator).replace("//", f"//the-app{secret}@") + login


def test_an_application_signs_in_by_its_secret(monkeypatch):
    monkeypatch.setenv(SECRET_NAME, "s3cret-of-the-app")
    with dataverse(ShiftedClock()) as simulator:
        simulator.client_secret = "s3cret-of-the-app"
        with App(signed(simulator)) as app:
            assert app.once(key="{n}", name="charge")(lambda n: n)(1) == 1
            assert "s3cret" not in repr(app.settings)
        assert sum(request.path.endswith("/token") for request in simulator.requests) == 1
        assert all("s3cret" not in str(request.query) for request in simulator.requests)


def test_an_application_signs_in_to_graph_and_again_when_its_token_is_refused(monkeypatch):
    monkeypatch.setenv(SECRET_NAME, "s3cret-of-the-app")
    with sharepoint(ShiftedClock()) as simulator:
        simulator.client_secret = "s3cret-of-the-app"
        url = sharepoint_url(simulator).replace("//", "//the-app@")
        with App(f"{url}?tenant=contoso&login={simulator.url}&graph={simulator.url}") as app:
            charge = app.once(key="{n}", name="charge")(lambda n: n)
            assert charge(1) == 1
            simulator.refuse("POST", SimulatedAnswer(401), "/items")
            assert charge(2) == 2
        tokens = [request for request in simulator.requests if request.path == "/contoso/oauth2/v2.0/token"]
        assert [token.json["client_id"] for token in tokens] == ["the-app"] * 2
        assert {token.json["scope"] for token in tokens} == {f"{simulator.url}/.default"}


def test_a_wrong_secret_is_told_without_it(monkeypatch):
    monkeypatch.delenv(SECRET_NAME, raising=False)
    with dataverse(ShiftedClock()) as simulator:
        simulator.client_secret = "right"
        with pytest.raises(StoreError, match="invalid_client") as refused:
            App(signed(simulator, ":wrong-secret"))
        assert "wrong-secret" not in str(refused.value)
        with pytest.raises(Misuse, match=SECRET_NAME):
            App(signed(simulator))


@pytest.mark.parametrize(
    "url",
    [
        "dataverse://shop.crm4.dynamics.com/new_claims",
        "dataverse://app@shop.crm4.dynamics.com/?tenant=t",
        "dataverse://app@shop.crm4.dynamics.com/claims?tenant=t",
        "dataverse://app@shop.crm4.dynamics.com/new_claims?tenant=t&color=red",
        "sharepoint://shop.sharepoint.com/sites/shop/Claims",
    ],
)
def test_a_url_that_lacks_something_is_refused_before_anything_is_sent(url):
    with pytest.raises(Misuse):
        App(url)


# -- rows ----------------------------------------------------------------------------------------


def test_a_simple_address_is_a_readable_key():
    assert row_key(AT) == "default!charge!shop~order~1;claim;self"
    assert row_key(Address("default/charge/Order 1", "claim", "self")).startswith("x-")


@pytest.mark.parametrize("text", ["", "plain", " blank ", "json:x", "\x01\u2028\ufeff", "Zeile\n"])
def test_a_text_comes_back(text):
    assert of_text(as_text(text)) == text


def test_one_throttled_request_holds_back_the_others():
    clock = ManualClock()
    clock.crowd = 4
    with dataverse(clock) as simulator:
        store = GroupedStore(dataverse_engine(simulator, clock), clock=clock)
        simulator.throttle(2)
        spaces = [Address(f"s{nth}", "claim", "self") for nth in range(4)]
        outcomes = []
        threads = [
            threading.Thread(target=lambda at=at: outcomes.append(store.write(Insert(at, "")).block())) for at in spaces
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(one) for one in outcomes] == [Written] * 4
        store.close()


def test_no_lease_looks_over_before_it_is(place):
    """The services' times have whole seconds: a write just before a full one looks older than it is."""
    _, store, clock, _ = place
    clock.wall = float(int(clock.wall)) + 0.9
    store.write(Insert(AT, "", "held", draw=True, lease=60.0)).block()
    clock.advance(59.95)
    found = store.read(AT).block()
    assert found.now < found.record.lease_until
    clock.advance(2.0)
    found = store.read(AT).block()
    assert found.now >= found.record.lease_until


class Blocked:
    """A service whose creations last until they are let go."""

    def __init__(self):
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def create(self, values):
        self.begun.release()
        self.go.wait(10)
        raise Disconnected(OSError("closed"), sent=True)

    def close(self):
        self.go.set()


def test_of_a_group_that_was_cut_off_by_closing_nobody_says_that_nothing_was_written():
    """Some of its requests were under way, others had not begun."""
    service, answers = Blocked(), []
    engine = RestEngine(service, clock=ManualClock())
    batches = [Batch([Insert(Address(f"s{nth}", "claim", "self"), "")], str(nth)) for nth in range(20)]

    def commit():
        try:
            engine.commit(batches)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            answers.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    for _ in range(8):
        service.begun.acquire()
    engine.close()
    committing.join(10)
    (answer,) = answers
    assert isinstance(answer, Disconnected) and answer.sent


def test_a_client_that_was_closed_connects_to_nothing_any_more():
    with dataverse(ShiftedClock()) as simulator:
        client = RestClient(simulator.url, None, clock=ShiftedClock())
        client.close()
        with pytest.raises(Disconnected, match="closed") as refused:
            client.call("GET", "/")
        assert not refused.value.sent and not simulator.requests
