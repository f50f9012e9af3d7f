"""Findings: one id and one notice, resolved when gone, reopened when back; tenants are apart."""

from __future__ import annotations

import pytest

from tests.unit.reconcile.shop import Shop, kinds
from twiceproof import Misuse
from twiceproof.operations import block
from twiceproof.reconcile.checks import Discrepancy, finding_id
from twiceproof.reconcile.findings import StoredFinding, count_findings, sighted


@pytest.fixture
def app(shop: Shop):
    shop.options["acts"] = False
    app = shop.process()
    shop.sell(app, range(1, 31))
    return app


def test_the_id_is_of_what_was_found_and_not_of_when():
    one = Discrepancy("duplicates:books", "order:1", ("b", "a"), "2 in books")
    same = Discrepancy("duplicates:books", "order:1", ("a", "b"), "another sentence")
    assert finding_id("invoices", one) == finding_id("invoices", same)
    others = [
        Discrepancy("duplicates:books", "order:1", ("a", "c"), ""),
        Discrepancy("duplicates:books", "order:2", ("a", "b"), ""),
        Discrepancy("extra:books", "order:1", ("a", "b"), ""),
    ]
    ids = {finding_id("invoices", found) for found in (one, *others)} | {finding_id("other", one)}
    assert len(ids) == 5


def test_a_run_that_sees_a_finding_twice_after_a_crash_counts_it_once():
    found = Discrepancy("duplicates:books", "order:1", ("a",), "2 in books")
    old = StoredFinding("fnd_1", "default", "invoices", found.check, found.key, found.refs, "", {}, 1.0, 1.0, 1.0)
    assert sighted("open", old, found, tick=1.0, now=2.0) == ("open", old)
    state, again = sighted("open", old, found, tick=2.0, now=2.0)
    assert (state, again.seen) == ("open", 2) and sighted(state, again, found, tick=2.0, now=2.0) == (state, again)


def test_the_same_finding_over_ten_runs_is_one_with_one_notice(shop, app):
    notices = []
    app.notify(notices.append, on="finding", quiet="1s")
    shop.invoice(7)
    seen = [shop.run(app) for _ in range(10)]
    for incidents in app.incidents:
        incidents.flush()
    assert [report.new for report in seen] == [1] + [0] * 9
    assert len({id_ for report in seen for id_ in report.ids}) == 1
    (found,) = app.findings()
    assert (found.state, found.seen, found.reopened) == ("open", 10, 0)


def test_a_new_finding_is_notified_of_and_an_old_one_is_not(shop, app):
    notices = []
    app.notify(notices.append, on="finding", quiet="1s")
    shop.invoice(7)
    shop.invoice(8)
    for _ in range(3):
        shop.run(app)
        app.incidents[0].flush()
        shop.stage.clock.advance(2)
    assert [(one.operation, one.event, one.count) for one in notices] == [("invoices", "finding", 2)]
    assert "2 in books, where 1 should be, and 1 more" in notices[0].line
    assert notices[0].look == "twiceproof reconcile findings list --name invoices"


def test_it_is_resolved_when_gone_and_reopened_when_back(shop, app):
    notices = []
    app.notify(notices.append, on="finding", quiet="1s")

    def run() -> tuple[int, int, int]:
        report = shop.run(app)
        app.incidents[0].flush()
        return report.new, report.reopened, report.resolved

    extra = shop.invoice(7)
    assert run() == (1, 0, 0)
    taken = [row for row in shop.books if row["id"] == extra]
    shop.books[:] = [row for row in shop.books if row["id"] != extra]
    assert run() == (0, 0, 1) and app.findings() == []
    shop.books += taken
    assert run() == (0, 1, 0)
    (found,) = app.findings()
    assert (found.state, found.reopened, found.seen) == ("open", 1, 1)
    assert len(notices) == 2


def test_a_person_acknowledges_suppresses_and_resolves(shop, app):
    shop.invoice(7)
    (id_,) = shop.run(app).ids
    assert app.acknowledge_finding(id_, by="ann", note="asked").state == "acknowledged"
    shop.run(app)
    assert [(one.state, one.by, one.note) for one in app.findings()] == [("acknowledged", "ann", "asked")]
    app.suppress_finding(id_, by="ben", until="2d")
    shop.run(app)
    (found,) = app.findings()
    assert (found.state, found.by) == ("suppressed", "ben") and found.until is not None
    shop.run(app)
    assert [(one.state, one.reopened) for one in app.findings()] == [("open", 1)]
    assert app.resolve_finding(id_, by="ann").state == "resolved"
    with pytest.raises(Misuse, match="resolved already"):
        app.acknowledge_finding(id_, by="ann")
    assert shop.run(app).reopened == 1


def test_a_suppression_without_an_end_stays(shop, app):
    shop.invoice(7)
    (id_,) = shop.run(app).ids
    app.suppress_finding(id_, by="ben")
    for _ in range(3):
        assert shop.run(app).reopened == 0
    assert [one.state for one in app.findings()] == ["suppressed"]


def test_an_unknown_finding_is_refused_with_the_next_move(app):
    with pytest.raises(Misuse, match="findings list"):
        app.acknowledge_finding("fnd_0", by="ann")


def test_findings_and_notices_of_tenants_never_cross(shop, app):
    notices = []
    app.notify(notices.append, on="finding", quiet="1s")
    shop.invoice(7)
    other = app.of("acme")
    tick = shop.tick()
    assert kinds(app.reconcile_now("invoices", tick=tick))["duplicates"] == 1
    assert other.findings() == []
    report = other.reconcile_now("invoices", tick=tick)  # the same sources; a ledger of its own, without runs
    app.incidents[0].flush()
    assert sorted((one.tenant, one.operation) for one in notices) == [("acme", "invoices"), ("default", "invoices")]
    own = {one.id for one in other.findings()}
    assert own == set(report.ids) and len(own) > 1
    only = next(one.id for one in other.findings() if one.check.startswith("disagree"))
    with pytest.raises(Misuse):
        app.acknowledge_finding(only, by="ann")
    assert len(other.reconcile_now("invoices", tick=tick, dry_run=True).findings) == len(own)
    shared = next(iter({one.id for one in app.findings()} & own))
    other.suppress_finding(shared, by="ben")
    assert [one.state for one in app.findings()] == ["open"]


def test_open_findings_rows_and_whole_runs_are_counted(shop, app):
    shop.invoice(7)
    shop.run(app)
    shop.stage.clock.advance(60)
    counts = block(count_findings(app.store))
    assert counts.open == {("invoices", "duplicates:books"): 1}
    assert counts.rows["invoices", "books"] == 31
    assert counts.now - counts.whole["invoices"] == pytest.approx(60)


def test_a_resolved_finding_is_forgotten_in_the_end(shop, app):
    from twiceproof.claims.retention import sweep

    extra = shop.invoice(7)
    shop.run(app)
    shop.books[:] = [row for row in shop.books if row["id"] != extra]
    shop.run(app)
    block(sweep(app.store))
    assert len(app.findings(state="all")) == 1
    shop.stage.clock.advance(91 * 86_400)
    block(sweep(app.store))
    assert app.findings(state="all") == []
