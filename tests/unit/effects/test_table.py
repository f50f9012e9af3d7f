"""Rows found or created under a claim, against our simulators of tables that refuse no second row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twiceproof import App, Happened, Misuse, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects import table
from twiceproof.effects.table_services import RowTable
from twiceproof.prove.simulators import AirtableSimulator, SharePointSimulator, SheetsSimulator
from twiceproof.prove.simulators.server import SimulatedAnswer, SimulatedRequest

KEY, OTHER = "tp_" + "a1" * 16, "tp_" + "b2" * 16


def token() -> str:
    return "token"


SIMULATORS: dict[str, tuple[Callable[[], Any], Callable[[str], RowTable]]] = {
    "airtable": (AirtableSimulator, lambda url: table.airtable("app1", "Orders", auth=token, url=url)),
    "sheets": (
        lambda: SheetsSimulator(["id", "total"]),
        lambda url: table.sheets("doc", "Orders", auth=token, url=url),
    ),
    "sharepoint": (SharePointSimulator, lambda url: table.sharepoint("site", "Orders", auth=token, url=url)),
}


class Place:
    """One simulated table, an app whose claims guard it, and the table as our programs see it."""

    def __init__(self, simulator: Any, rows: RowTable, app: App) -> None:
        self.simulator = simulator
        self.rows = rows
        self.app = app

    def finding(self, order: str = "17", **options: Any) -> table.RowFinding:
        return table.find_or_create(self.rows, {"id": order}, {"total": "9.90"}, claims=self.app, **options)


@pytest.fixture(params=SIMULATORS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    make, rows = SIMULATORS[request.param]
    with make() as simulator, App("memory://") as app:
        yield Place(simulator, rows(simulator.url), app)


def test_a_row_is_created_and_then_found(place: Place) -> None:
    first, second = place.finding().perform(KEY), place.finding().perform(OTHER)
    assert (first.created, second.created, first.id) == (True, False, second.id)
    assert place.simulator.rows == [{"id": "17", "total": "9.90"}]


@pytest.mark.slow
def test_twenty_workers_make_one_row_each_of_ten_orders(place: Place) -> None:
    def work(number: int) -> bool | None:
        return place.finding(f"order {number % 10}").perform(f"tp_{number:032x}").created

    with ThreadPoolExecutor(20) as pool:
        created = list(pool.map(work, range(200)))
    assert created.count(True) == 10
    assert sorted(row["id"] for row in place.simulator.rows) == sorted(f"order {number}" for number in range(10))


def race_with_another_writer(place: Place) -> None:
    """Somebody adds the same order by hand just before our request to create it arrives."""

    def meddle(request: SimulatedRequest) -> None:
        if request.method == "POST":
            place.simulator.before = None
            place.simulator.insert({"id": "17", "total": "by hand"})

    place.simulator.before = meddle


def test_a_second_row_by_another_writer_is_reported_and_nothing_is_deleted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    race_with_another_writer(place)
    with caplog.at_level(logging.WARNING, "twiceproof"), pytest.raises(OutcomeUnknown, match="2 found") as caught:
        place.finding().perform(KEY)
    assert caught.value.data["repeats"] is True
    assert [row["total"] for row in place.simulator.rows] == ["by hand", "9.90"]
    assert "has 2 rows for id='17'" in caplog.text
    look = place.finding().look(KEY)
    assert isinstance(look, Unknown) and look.why.startswith("2 found in ") and len(look.found) == 2
    assert {one.method for one in place.simulator.requests} == {"GET", "POST"}


def test_on_request_the_oldest_row_is_kept_and_the_others_are_named(place: Place) -> None:
    race_with_another_writer(place)
    found = place.finding(several="first").perform(KEY)
    first, second = place.rows.find({"id": "17"})
    assert (found.id, found.created, found.others) == (first.id, False, [second.id])
    assert first.values["total"] == "by hand"
    assert place.finding(several="first").look(KEY) == Happened(table.FoundRow(first.id, None, [second.id]))


def test_a_flow_that_goes_on_with_the_oldest_leaves_a_finding(place: Place) -> None:
    app = place.app

    @app.effect
    def save(order: str) -> table.RowFinding:
        return place.finding(order[:2], several="first")

    @app.flow(key="order:{order}")
    def sync(order: str) -> str:
        return save(order).id

    race_with_another_writer(place)
    first, second = [sync(order) for order in ("17", "17 again")]
    rows = [row.id for row in place.rows.find({"id": "17"})]
    assert first == second == rows[0]
    (found,) = app.findings()  # of both runs
    assert (found.check, found.refs, found.seen) == ("several-found", tuple(sorted(rows)), 2)
    assert [row["total"] for row in place.simulator.rows] == ["by hand", "9.90"]


def test_a_lost_answer_is_cleared_up_under_the_same_claim(place: Place) -> None:
    place.simulator.lose_answer("POST")
    assert place.finding().perform(KEY).id == place.rows.find({"id": "17"})[0].id
    assert len(place.simulator.rows) == 1


def test_what_fails_after_the_row_was_created_is_never_called_undone(place: Place) -> None:
    def break_down(request: SimulatedRequest) -> None:
        if request.method == "POST":
            place.simulator.refuse("GET", SimulatedAnswer(429))

    place.simulator.before = break_down
    with pytest.raises(OutcomeUnknown, match="created"):
        place.finding().perform(KEY)
    assert len(place.simulator.rows) == 1


def test_a_refusal_before_anything_is_created_is_clean(place: Place) -> None:
    place.simulator.refuse("GET", SimulatedAnswer(503, None, {"Retry-After": "9"}))
    with pytest.raises(NotDone) as caught:
        place.finding().perform(KEY)
    assert caught.value.data["retry_after"] == 9.0
    assert place.simulator.rows == []


def test_values_with_quotes_and_signs_are_found_as_they_are(place: Place) -> None:
    for number, text in enumerate(["O'Hara", "a\\b", "a','b", "ü & 50%", "=1+1"]):
        assert place.finding(text).perform(f"tp_{number:032x}").created is True
        assert place.finding(text).perform(f"tp_{number + 50:032x}").created is False


def test_a_unique_column_needs_no_claim_and_refuses_other_writers() -> None:
    with SharePointSimulator(unique="id") as simulator:
        rows = table.sharepoint("site", "Orders", auth=token, unique=True, url=simulator.url)
        effect = table.find_or_create(rows, {"id": "17"}, {"total": "9.90"})

        def meddle(request: SimulatedRequest) -> None:
            if request.method == "POST":
                simulator.before = None
                simulator.insert({"id": "17", "total": "by hand"})

        simulator.before = meddle
        assert effect.perform(KEY) == table.FoundRow("1", False)
        assert simulator.rows == [{"id": "17", "total": "by hand"}]


def test_a_bad_request_is_not_taken_for_a_row_that_exists() -> None:
    with SharePointSimulator(unique="id") as simulator:
        rows = table.sharepoint("site", "Orders", auth=token, unique=True, url=simulator.url)
        simulator.refuse("POST", SimulatedAnswer(400, {"error": {"code": "invalidRequest", "message": "no column"}}))
        with pytest.raises(NotDone, match="no column"):
            table.find_or_create(rows, {"id": "17"}, {"other": 1}).perform(KEY)


def test_a_table_without_a_unique_column_needs_claims() -> None:
    rows = table.airtable("app1", "Orders", auth=token)
    with pytest.raises(Misuse, match="claims=app"):
        table.find_or_create(rows, {"id": "17"}, {})
    with App("memory://") as app:
        for wrong in (
            lambda: table.find_or_create(rows, {}, {}, claims=app),
            lambda: table.find_or_create(rows, {"id": ""}, {}, claims=app),
            lambda: table.find_or_create(rows, {"id": "\u200b", "shop": 1}, {}, claims=app),
            lambda: table.find_or_create(rows, {"id": "17"}, {"id": "18"}, claims=app),
            lambda: table.find_or_create(rows, {"id": "17"}, {}, claims=app, several="all"),  # type: ignore[arg-type]
            lambda: table.airtable("app1", "Or'ders", auth=token),
        ):
            with pytest.raises(Misuse):
                wrong()


def test_a_sheet_without_the_column_is_refused() -> None:
    with SheetsSimulator(["id"]) as simulator, App("memory://") as app:
        rows = table.sheets("doc", "Orders", auth=token, url=simulator.url)
        with pytest.raises(NotDone, match="no column total"):
            table.find_or_create(rows, {"id": "17"}, {"total": 1}, claims=app).perform(KEY)
        assert simulator.rows == []


def test_airtable_names_no_time_and_is_given_its_thirty_seconds() -> None:
    with AirtableSimulator() as simulator, App("memory://") as app:
        rows = table.airtable("app1", "Orders", auth=token, url=simulator.url)
        simulator.refuse("GET", SimulatedAnswer(429, {"error": {"type": "RATE_LIMIT_REACHED"}}))
        with pytest.raises(NotDone) as caught:
            table.find_or_create(rows, {"id": "17"}, {}, claims=app).perform(KEY)
        assert caught.value.data["retry_after"] == 30.0
