"""Every source at the door of an app: its sample starts one run, and comes again as a duplicate."""

from __future__ import annotations

import warnings

import pytest

from tests.contracts.sources.keys import certificate
from twiceproof import App, ForgottenEarlyWarning, body_hash, env
from twiceproof.inbound.dead_letters import letters
from twiceproof.inbound.hook import warn_if_forgotten_early
from twiceproof.inbound.replay import replay_letter
from twiceproof.inbound.sources import SOURCES, find_source
from twiceproof.keys.duration import seconds
from twiceproof.operations import block
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.source_contract.case import SECRET

OPTIONS = {
    "generic": {"id": "data.id", "signature": "X-Signature"},
    "paypal": {"certificate": certificate()[0], "key": certificate()[1]},
}


@pytest.fixture
def app(tmp_path):
    with App(f"sqlite:///{tmp_path}/shop.db", clock=ShiftedClock()) as app:
        yield app


@pytest.fixture
def taken(app):
    """What runs were given."""
    return []


def declare(app, taken, source, **options):
    @app.flow(key=lambda payload: body_hash(payload), name="take")
    def take(payload):
        taken.append(payload)

    app.webhook(source, start=take, **{"secret": SECRET, **options})


def deliver(app, sent, name=None):
    url = sent.url or f"https://shop.example/hooks/{sent.source}{'?' + sent.query if sent.query else ''}"
    return app.receive(name or sent.source, sent.body, list(sent.headers.items()), url=url)


@pytest.mark.parametrize("name", SOURCES)
def test_a_sample_starts_one_run_and_is_then_a_duplicate(app, taken, name):
    source = find_source(name, **OPTIONS.get(name, {}))
    declare(app, taken, source)
    first = deliver(app, source.sample(SECRET, app.clock.now()))
    app.clock.advance(60)
    second = deliver(app, source.sample(SECRET, app.clock.now()))
    assert (first.status, second.status) == (200, 200)
    assert b"new" in first.body and b"duplicate" in second.body
    app.worker().run(until_idle=True)
    assert len(taken) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_a_forgery_of_any_kind_is_told_the_same(app, taken, name):
    source = find_source(name, **OPTIONS.get(name, {}))
    declare(app, taken, source)
    forged = source.sample("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", app.clock.now())
    assert deliver(app, forged) == deliver(app, forged, "nobody")
    assert deliver(app, forged).status == 401
    assert block(letters(app.store, "default")) == []


def test_an_array_of_events_starts_a_run_for_each_that_is_new(app, taken):
    source = find_source("event_grid")
    declare(app, taken, source)
    some, more = ([{"data": number} for number in range(count)] for count in (40, 60))
    assert deliver(app, source.sample(SECRET, app.clock.now(), some)).status == 200
    assert b"new" in deliver(app, source.sample(SECRET, app.clock.now(), more)).body
    assert b"duplicate" in deliver(app, source.sample(SECRET, app.clock.now(), more[::-1])).body
    app.worker().run(until_idle=True)
    assert sorted(payload["data"] for payload in taken) == list(range(60))


def test_a_body_that_changes_between_deliveries_is_one_event_by_its_fingerprint(app, taken):
    source = find_source("generic", fingerprint=("order",), signature="X-Signature")
    declare(app, taken, source)
    for sent_at in (1, 2, 3):
        sent = source.sample(SECRET, app.clock.now(), {"order": 7, "sent_at": sent_at})
        answer = deliver(app, sent)
    assert b"duplicate" in answer.body
    app.worker().run(until_idle=True)
    assert taken == [{"order": 7, "sent_at": 1}]


def test_what_stripe_counts_down_does_not_make_another_event(app, taken):
    source = find_source("stripe")
    declare(app, taken, source)
    bodies = [b'{"id":"evt_1","pending_webhooks":%d}' % left for left in (2, 1)]
    answers = [deliver(app, source.seal(body, SECRET, app.clock.now())) for body in bodies]
    assert b"duplicate" in answers[1].body
    other = deliver(app, source.seal(b'{"id":"evt_1","amount":9}', SECRET, app.clock.now()))
    assert b"mismatch" in other.body


def test_a_letter_of_a_source_with_its_id_in_a_header_can_be_replayed(app, taken):
    source = find_source("github")
    broken = [True]

    @app.flow(key="order:{order}")
    def take(order):
        taken.append(order)

    @app.webhook(source, secret=SECRET, start=take)
    def order_of(payload):
        if broken[0]:
            raise KeyError("a bug")
        return payload["hook_id"]

    sent = source.sample(SECRET, app.clock.now())
    assert b"poison" in deliver(app, sent).body
    (letter,) = block(letters(app.store, "default"))
    assert "sha256=" not in str(letter)
    broken[0] = False
    (admitted,) = block(replay_letter(app.runtime, app.hooks, letter.id))
    assert admitted.outcome == "new"
    assert b"duplicate" in deliver(app, sent).body


# -- secrets of the environment ---------------------------------------------------------------------


def test_a_secret_of_the_environment_is_read_at_each_delivery(app, taken, monkeypatch):
    source = find_source("stripe")
    declare(app, taken, source, secret=env("STRIPE_SECRET", "STRIPE_SECRET_OLD"))
    monkeypatch.delenv("STRIPE_SECRET", raising=False)
    monkeypatch.delenv("STRIPE_SECRET_OLD", raising=False)
    sent = source.sample(SECRET, app.clock.now())
    assert deliver(app, sent).status == 401
    monkeypatch.setenv("STRIPE_SECRET_OLD", SECRET + "\n")
    assert deliver(app, sent).status == 200
    monkeypatch.setenv("STRIPE_SECRET_OLD", "withdrawn")
    assert deliver(app, sent).status == 401


def test_a_secret_of_the_environment_is_not_shown(monkeypatch):
    monkeypatch.setenv("STRIPE_SECRET", "hush")
    assert repr(env("STRIPE_SECRET")) == "env('STRIPE_SECRET')"
    with pytest.raises(ValueError, match="takes the name"):
        env()


# -- how long an event is remembered ----------------------------------------------------------------


def test_a_webhook_that_forgets_before_its_sender_gives_up_is_warned_about(app, taken):
    with pytest.warns(ForgottenEarlyWarning, match=r"stripe retries for 3d.*after 1h.*keep='3d'") as found:
        declare(app, taken, "stripe", keep="1h")
    assert found[0].filename == __file__


@pytest.mark.parametrize("keep", ["3d", "30d", "forever"])
def test_a_webhook_that_remembers_long_enough_is_not(app, taken, keep):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declare(app, taken, "stripe", keep=keep)


@pytest.mark.parametrize("name", SOURCES)
def test_the_keep_that_is_asked_for_is_long_enough(name):
    source = find_source(name, **OPTIONS.get(name, {}))
    with pytest.warns(ForgottenEarlyWarning) as found:
        warn_if_forgotten_early(source, 1.0)
    asked = str(found[0].message).rpartition("keep='")[2].partition("'")[0]
    assert source.retry_window <= seconds(asked, name="keep") <= source.retry_window + 86_400
