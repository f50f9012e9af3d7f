"""A run of a reconciliation: what it finds, what it does not, and that it goes on wherever it was killed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.unit.flows.stage import Died
from tests.unit.reconcile.shop import Shop, kinds, wrong_in_seeded_world
from twiceproof import Absent, Happened, Misuse, TwiceproofError, Unknown, check
from twiceproof.reconcile.checks import Comparison, Discrepancy
from twiceproof.reconcile.sources import SourceOrigin

NUMBERS = range(1, 41)


@pytest.fixture
def app(shop: Shop) -> Any:
    app = shop.process()
    shop.sell(app, NUMBERS)
    return app


def test_nothing_is_found_where_nothing_is_wrong(shop, app):
    report = shop.run(app)
    assert report.complete and not report.findings
    assert {source.source: source.rows for source in report.sources}["books"] == 40


def test_each_kind_of_difference_is_found(shop, app):
    shop.options["acts"] = False
    app = shop.process()
    shop.invoice(7)  # a second one
    shop.order(100)  # no invoice, no run
    shop.invoice(200)  # no order, no run
    shop.books[3]["amount"] = 99
    shop.books[9]["id"] = "in_other"  # not the one that the ledger recorded
    shop.books[:] = [row for row in shop.books if row["reference"] != 12]  # the ledger says done
    found = {(one.check.partition(":")[0], one.key) for one in shop.run(app).findings}
    assert found == {
        ("duplicates", "order:7"),
        ("missing", "order:100"),
        ("missing", "order:12"),
        ("extra", "order:200"),
        ("differ", "order:4"),
        ("disagree", "order:10"),
        ("disagree", "order:12"),
        ("disagree", "order:200"),
    }


@pytest.mark.slow
def test_fifty_of_each_are_found_among_many_and_nothing_else(shop):
    """A tenth of what `make prove` has; F22 plants them among 100,000."""
    assert wrong_in_seeded_world(shop, 10_000, random.Random(4)) == []


# -- the second look -----------------------------------------------------------------------------


def test_a_writer_that_is_busy_causes_no_finding(shop):
    shop.options.update(acts=False, ledger=False, grace="1h")
    app = shop.process()
    for number in NUMBERS:
        shop.order(number)
        shop.invoice(number)
    _write_while_reading(shop)
    for _ in range(20):
        report = shop.run(app)
        assert sum(one.suspects for one in report.checks) > 0 and not report.findings


def _write_while_reading(shop: Shop) -> None:
    """Each reading of the shop's orders comes after an order whose invoice the books get a moment later."""
    late: list[int] = []

    def orders() -> list[dict[str, Any]]:
        number = 1_000 + len(late)
        late.append(number)
        shop.order(number)
        return list(shop.orders)

    def books(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = list(rows)
        for number in late[len(seen) - len(NUMBERS) :]:
            shop.invoice(number)
        return seen

    shop.options.update(orders=orders, read=books)


def test_without_the_second_look_it_would_be_one(shop, monkeypatch):
    """The control: by the first reading alone, each run has a finding."""
    shop.options.update(acts=False, ledger=False)
    app = shop.process()
    for number in NUMBERS:
        shop.order(number)
        shop.invoice(number)
    _write_while_reading(shop)

    def trusting(self: Any, suspected: Comparison, key: str) -> Discrepancy:
        return Discrepancy(suspected.label, key, (), "by the first reading")

    monkeypatch.setattr("twiceproof.reconcile.looking.SecondLook.judge", trusting)
    assert all(shop.run(app).findings for _ in range(3))


def test_a_suspect_is_looked_at_when_it_is_older_than_the_grace_time(shop):
    shop.options.update(acts=False, ledger=False, grace="2h", at="{paid}")
    app = shop.process()
    for number in NUMBERS:
        shop.order(number)
        shop.invoice(number)
    tick = shop.tick()
    now = shop.stage.clock.now()
    for row in shop.orders:
        row["paid"] = now - 86_400
    shop.orders[-1]["paid"] = now - 3_600
    shop.books.pop()
    before = shop.stage.clock.now()
    assert kinds(shop.run(app, tick)) == {"missing": 1}
    assert 3_600 <= shop.stage.clock.now() - before < 3_700


def test_what_cannot_be_looked_at_again_is_neither_found_nor_resolved(shop, app):
    """Unknown is not Absent."""
    shop.options.update(acts=False, look=lambda key: Unknown("busy"))
    app = shop.process()
    shop.invoice(7)
    report = shop.run(app)
    assert not report.findings and not report.complete
    shop.options["look"] = lambda key: [row for row in shop.books if f"order:{row['reference']}" == key]
    assert kinds(shop.run(app)) == {"duplicates": 1}
    shop.options["look"] = lambda key: Unknown("busy")
    app = shop.process()
    assert shop.run(app).resolved == 0
    assert [one.state for one in app.findings()] == ["open"]


def test_a_look_that_fails_is_unsure(shop, app):
    def broken(key: str) -> Any:
        raise OSError("no answer")

    shop.options.update(acts=False, look=broken)
    app = shop.process()
    shop.invoice(7)
    report = shop.run(app)
    assert not report.findings and sum(one.unsure for one in report.checks) > 0


def test_looks_keep_to_the_rate(shop):
    times: list[float] = []

    def look(key: str) -> list[Any]:
        times.append(shop.stage.clock.now())
        return []

    shop.options.update(acts=False, ledger=False, look=look)
    app = shop.process()
    for number in range(40):
        shop.order(number)
    shop.invoice(39)
    shop.run(app)
    assert len(times) == 39
    for first, last in zip(times, times[21:], strict=False):  # 10 at once, then 10 in each second
        assert last - first >= 1.0


def test_two_workers_keep_to_the_rate_together(shop):
    """The second one looks while the first one does."""
    times: list[float] = []
    others = [shop.stage.process()]

    def look(key: str) -> list[Any]:
        if others:
            shop.declare(others.pop()).reconcile_now("invoices", dry_run=True)
        times.append(shop.stage.clock.now())
        return []

    shop.options.update(acts=False, ledger=False, look=look)
    app = shop.process()
    for number in range(40):
        shop.order(number)
    shop.invoice(39)
    shop.run(app)
    assert len(times) == 2 * 39
    for first, last in zip(times, times[21:], strict=False):  # 10 at once, then 10 in each second
        assert last - first >= 1.0


# -- the step's own probe ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "found", "complete"),
    [(Absent(), 1, True), (Happened({"id": "in_5"}), 0, True), (Unknown("busy"), 0, False)],
)
def test_the_ledger_and_the_destination_disagree_only_if_the_probe_agrees(shop, answer, found, complete):
    shop.options.update(acts=False, step={"repeat": check(lambda order: answer)})
    app = shop.process()
    shop.sell(app, NUMBERS)
    shop.books[:] = [row for row in shop.books if row["reference"] != 5]
    report = shop.run(app)
    assert sum(one.check.startswith("disagree") for one in report.findings) == found
    assert report.complete is complete


# -- sources that are not whole ------------------------------------------------------------------


def _breaking(at: int) -> Any:
    def read(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from rows[:at]
        raise OSError("connection reset")

    return read


@pytest.mark.parametrize(
    "read",
    [
        *(pytest.param(_breaking(at), id=f"breaks at {at}") for at in range(41)),
        pytest.param(lambda rows: [], id="empty"),
        pytest.param(lambda rows: rows[:28], id="shrunk by 30 %"),
        pytest.param(lambda rows: [*rows[:20], *rows[:20]], id="a page twice"),
        pytest.param(lambda rows: [*rows[:20], "no row"], id="a row that is none"),
    ],
)
def test_a_source_that_is_not_whole_proves_no_absence(shop, app, read):
    shop.order(100)
    assert kinds(shop.run(app)) == {"missing": 1}
    app.worker().run(until_idle=True)
    shop.order(101)
    made = shop.made
    shop.options["read"] = read
    report = shop.run(app)
    assert [(one.check, one.key) for one in report.findings] == [("source-incomplete", "books")]
    assert not report.complete and not report.outcomes and not report.plans and report.resolved == 0
    assert (shop.made, shop.voided) == (made, {})
    del shop.options["read"]
    report = shop.run(app)
    assert report.complete and kinds(report) == {"missing": 1} and report.resolved == 2


def test_a_source_that_hangs_is_not_whole(shop, app, monkeypatch):
    import threading

    let_go = threading.Event()

    def hanging(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        let_go.wait(10)
        yield from rows

    monkeypatch.setattr(SourceOrigin, "timeout", property(lambda self: 0.05, lambda self, value: None), raising=False)
    shop.options["read"] = hanging
    report = shop.run(app)
    let_go.set()
    assert [one.check for one in report.findings] == ["source-incomplete"]


def test_a_source_that_breaks_at_the_second_look_proves_nothing(shop, app):
    shop.order(100)
    readings: list[int] = []

    def read(rows: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        readings.append(1)
        return list(rows) if len(readings) == 1 else _breaking(5)(rows)

    shop.options["read"] = read
    report = shop.run(app)
    assert len(readings) == 2 and not report.findings and not report.complete and shop.made == 40


def test_a_person_accepts_that_a_source_has_become_smaller(shop, app):
    shop.options["acts"] = False
    app = shop.process()
    shop.run(app)
    shop.books[:], shop.orders[:] = shop.books[:20], shop.orders[:20]
    first = shop.run(app)
    assert kinds(first) == {"source-incomplete": 2}
    for one in app.findings():
        app.resolve_finding(one.id, by="ann", note="archived")
    assert shop.run(app).complete


# -- too many ------------------------------------------------------------------------------------


def test_of_very_many_suspects_some_are_listed_and_all_are_counted(shop):
    shop.options.update(ledger=False, most=5)
    app = shop.process()
    for number in range(100):
        shop.order(number)
    shop.invoice(0)
    report = shop.run(app)
    assert kinds(report) == {"missing": 5, "too-many": 1}
    assert next(one for one in report.checks if one.check.startswith("missing")).suspects == 99
    assert not report.plans and not report.complete


# -- killed anywhere -----------------------------------------------------------------------------


def _world(shop: Shop) -> None:
    shop.sell(shop.process(), range(1, 101))
    shop.invoice(7, id_="surplus")
    shop.order(500)


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_any_commit_it_goes_on_and_ends_the_same(shop, landed):
    shop.options["undo"] = "safe"
    _world(shop)
    books, orders = list(shop.books), list(shop.orders)
    tick = shop.tick()
    clean = shop.process()
    expected = sorted((one.check, one.key, one.summary) for one in shop.run(clean, tick).findings)
    commits = clean.engine.commits
    assert commits > 6 and shop.voided == {"surplus": 1}
    for at in range(1, commits + 1):
        shop.stage.engine._records.clear()
        shop.books[:], shop.orders[:], shop.made = [], [], 0
        _world(shop)
        assert (shop.books, shop.orders) == (books, orders)
        shop.voided.clear()
        tick = shop.tick()
        dying = shop.process(at, landed=landed)
        with contextlib.suppress(Died, TwiceproofError):  # at the last ones, the run is over already
            shop.run(dying, tick)
        shop.stage.lapse()
        app = shop.process()
        report = shop.run(app, tick)
        app.worker().run(until_idle=True)
        assert sorted((one.check, one.key, one.summary) for one in report.findings) == expected, at
        assert shop.voided == {"surplus": 1}, at
        assert sum(row["reference"] == 500 for row in shop.books) == 1, at
        assert {one.seen for one in app.findings(state="all")} == {1}, at
        assert not shop.run(app).findings, at
        assert {one.state for one in app.findings(state="all")} == {"resolved"}, at
        assert shop.voided == {"surplus": 1}, at


# -- declarations --------------------------------------------------------------------------------


def test_two_checks_of_one_name_are_refused(shop):
    app = shop.stage.process()

    @app.reconcile()
    def twice(find):
        rows = find.source("rows", [{"id": 1}], key="{id}")
        yield find.duplicates(rows)
        yield find.duplicates(rows)

    with pytest.raises(Misuse, match="another name="):
        app.reconcile_now("twice")


def test_only_checks_may_be_yielded(shop):
    app = shop.stage.process()

    @app.reconcile()
    def wrong(find):
        yield "duplicates"

    with pytest.raises(Misuse, match="yields checks"):
        app.reconcile_now("wrong")


def test_a_dry_run_writes_nothing(shop, app):
    shop.invoice(7)
    shop.order(100)
    shop.stage.clock.advance(1)
    before = dict(shop.stage.engine._records)
    report = app.reconcile_now("invoices", dry_run=True)
    assert report.dry and kinds(report) == {"duplicates": 1, "missing": 1}
    assert shop.stage.engine._records == before and not shop.voided
