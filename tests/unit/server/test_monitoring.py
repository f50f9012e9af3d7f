"""Counts of what is in the store, by state; and a worker's own port for them."""

from urllib.request import urlopen

import pytest

from twiceproof import App, Misuse, NeedsReview, StoreUnavailable, Waiting
from twiceproof.flows.history import queries as census
from twiceproof.flows.history.queries import count_states
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.server.metrics_port import COUNTS_FRESH, MetricsPort


@pytest.fixture
def app():
    with App("memory://", clock=ManualClock()) as made:

        @made.step(repeat="never")
        def charge(order):
            if order < 0:
                raise TimeoutError("no answer")

        @made.flow(key="order:{order}")
        def pay(order):
            charge(order)

        made.pay = pay
        yield made


def fill(app):
    app.pay(1)
    app.pay.start(2)
    app.pay.start(3)
    with pytest.raises(NeedsReview):
        app.pay(-4)
    for key in ("a", "b", "c"):
        with pytest.raises((TimeoutError, NeedsReview)), app.claim("ship", key):
            raise TimeoutError("no answer")


def test_runs_and_claims_are_counted_apart_by_state(app):
    fill(app)
    counts = block(count_states(app.store))
    assert counts.runs == {"review": 1, "held": 0, "queued": 2, "waiting": 0, "failed": 0}
    assert sum(counts.claims.values()) == 3 and counts.dead_letters == 0


def test_approvals_that_wait_for_a_decision_are_counted(app):
    @app.flow(key="sale:{order}")
    def sell(order):
        app.approve("sale", show={"order": order})

    for order in (1, 2):
        with pytest.raises(Waiting):
            sell(order)
    app.decide(app.approvals()[0].id, True, by="ann")
    assert block(count_states(app.store)).approvals == 1


def test_a_count_reads_a_bounded_number_of_rows_however_many_there_are(app, monkeypatch):
    monkeypatch.setattr(census, "MOST_COUNTED", 5)
    for order in range(20):
        app.pay.start(order)
    asked = []
    scan = app.store.scan
    monkeypatch.setattr(app.store, "scan", lambda *args, **more: asked.append(more["limit"]) or scan(*args, **more))
    assert block(count_states(app.store)).runs["queued"] == 5
    assert len(asked) < 3 * len(census.COUNTED) and set(asked) == {5}


@pytest.fixture
def port(app):
    made = MetricsPort(app, app.worker(), "127.0.0.1", 0)
    yield made
    made.close()


def scraped(port, path="/metrics"):
    with urlopen(port.url.removesuffix("/metrics") + path, timeout=30) as answer:
        return answer.read().decode()


def test_a_worker_tells_prometheus_what_it_does_and_what_waits(app, port):
    fill(app)
    text = scraped(port)
    assert 'twiceproof_runs{state="review"} 1.0' in text and 'twiceproof_runs{state="queued"} 2.0' in text
    assert "twiceproof_runs_under_way 0.0" in text and "twiceproof_runs_begun_total 0.0" in text
    assert "twiceproof_requests_total" not in text  # it serves no requests
    assert scraped(port, "/healthz") == '{"status":"alive"}'


def test_a_count_is_believed_for_a_while_and_what_the_store_does_not_tell_stays(app, port, monkeypatch):
    fill(app)
    scraped(port)
    app.pay.start(5)
    assert 'state="queued"} 2.0' in scraped(port)
    app.clock.advance(COUNTS_FRESH)
    assert 'state="queued"} 3.0' in scraped(port)
    app.clock.advance(COUNTS_FRESH)

    def away(*_, **__):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(app.store, "scan", away)
    assert 'state="queued"} 3.0' in scraped(port)


def test_a_port_that_is_taken_is_named(app, port):
    taken = int(port.url.split(":")[2].split("/")[0])
    with pytest.raises(Misuse, match=f"Cannot listen on .* port {taken}"):
        MetricsPort(app, app.worker(), "127.0.0.1", taken)
