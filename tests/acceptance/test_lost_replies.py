"""A proxy swallows the answer to a commit that has landed: the caller learns the truth, the work is done once."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.acceptance.places import PostgresPlace, RedisPlace
from twiceproof import App, InProgress
from twiceproof.records import Batch
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store

pytestmark = pytest.mark.server

COMMITS = {"postgres": b"twiceproof_", "valkey": b"EVALSHA"}


@pytest.fixture(params=["postgres", "valkey"])
def behind(request, tmp_path, fault_proxy):
    """A place, and a proxy in front of it."""
    url = request.getfixturevalue({"postgres": "postgres_dsn", "valkey": "redis_url"}[request.param])
    parts = urlsplit(url)
    proxy = fault_proxy(parts.hostname, parts.port)
    place = {"postgres": PostgresPlace, "valkey": RedisPlace}[request.param](proxy.url(url), tmp_path)
    return place, proxy, COMMITS[request.param]


def guarded(app, place):
    @app.once(key="order:{order_id}")
    def charge(order_id):
        place.do(f"charge {order_id}")
        return f"receipt {order_id}"

    return charge


@pytest.mark.parametrize("lost", [0, 1], ids=["of the take", "of the record"])
def test_a_lost_answer_is_found_out_and_the_work_is_done_once(behind, lost):
    place, proxy, commit = behind
    with place.app() as app:
        charge = guarded(app, place)
        assert charge(1) == "receipt 1"  # connections are open now
        proxy.drop_next_reply(match=commit, skip=lost)
        assert charge(2) == "receipt 2"
        assert proxy.counters.replies_dropped == 1
        assert charge(2) == "receipt 2"
    assert place.effects() == ["charge 1", "charge 2"]


class Forgetful(GroupedStore):
    """The protection taken away: a conflict after a lost answer is taken at its word."""

    def _recognise_lost_acknowledgement(self, batch: Batch, answer):
        return answer


def test_control_without_the_nonce_a_caller_takes_itself_for_somebody_else(behind):
    place, proxy, commit = behind
    engine = open_store(place.url).engine
    with App(Forgetful(engine)) as app:
        charge = guarded(app, place)
        charge(1)
        proxy.drop_next_reply(match=commit)
        with pytest.raises(InProgress):
            charge(2)
