"""A put that travels alone has a script of its own: it must do what it would have done in company."""

import re

import pytest

from tests.servers import ValkeyServer
from twiceproof.records import Address, Batch, Conflict, Insert, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.redis import url as redis_target
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

COMPANY = Batch([Insert(Address("elsewhere", "claim", "self"), "")], "company")


@pytest.fixture
def engine(redis_url):
    engine = RedisEngine(redis_url)
    yield engine
    engine.close()


def insert(space, **changes):
    return Insert(Address(space, "claim", "self"), "first", state="held", draw=True, **changes)


def replace(space, first, **changes):
    condition = {} if "version" in changes else {"fence": first.fence}
    return Replace(Address(space, "claim", "self"), **{"body": "second", **condition, **changes})


SECOND = {
    "an insert on an insert": lambda space, first: insert(space),
    "by fence": lambda space, first: replace(space, first, state="done", draw=True),
    "by another fence": lambda space, first: replace(space, first, fence=first.fence + 1),
    "by version": lambda space, first: replace(space, first, version=first.version, state="held"),
    "by another version": lambda space, first: replace(space, first, version="1"),
    "with the old body": lambda space, first: replace(space, first, body=None, state="held", lease=30.0),
    "due in another queue": lambda space, first: replace(space, first, queue="other", due_in=60.0),
    "due later": lambda space, first: replace(space, first, queue="queue", due_in=600.0),
    "due no more": lambda space, first: replace(space, first, state="held"),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_alone_and_in_company_a_put_leaves_the_same(engine, valkey_server, second):
    """Space a is written to alone, b in company; answers, records and indexes differ in numbers and times only."""
    assert type(_land(engine, "a", second, lone=True)) is type(_land(engine, "b", second, lone=False))
    assert _shape(engine, "a") == _shape(engine, "b")
    assert _indexed(valkey_server, engine, "a") == _indexed(valkey_server, engine, "b")


def _land(engine, space, second, *, lone):
    first = _commit(engine, insert(space, lease=30.0, queue="queue", due_in=60.0), "n1", lone=lone)
    assert isinstance(first, Written)
    return _commit(engine, second(space, first), "n2", lone=lone)


def _commit(engine, write, nonce, *, lone):
    batch = Batch([write], nonce)
    return engine.commit([batch] if lone else [batch, COMPANY])[0]


def _shape(engine, space):
    record = engine.fetch([Address(space, "claim", "self")])[0].record
    spans = [round(at - record.updated_at) if at else None for at in (record.lease_until, record.due_at)]
    drawn = str(record.fence) == record.version
    return record.body, record.state, record.queue, record.nonce, drawn, record.created_at < record.updated_at, spans


def _indexed(server: ValkeyServer, engine, space):
    """Every index in which the space is named, by name and entry."""
    lane = engine._lane(space).prefix
    found = set()
    for key in server.call("KEYS", f"{lane}:[id]*"):
        for entry in server.call("ZRANGE", key, 0, -1):
            if re.search(rb"(^|\0)" + space.encode() + rb"\0", entry):
                found.add((key.decode().removeprefix(lane), entry.replace(space.encode() + b"\0", b"SPACE\0")))
    return found


def test_the_answer_to_a_misfit_carries_what_is_there(engine):
    first = _commit(engine, insert("a"), "n1", lone=True)
    again = _commit(engine, insert("a"), "n2", lone=True)
    absent = _commit(engine, replace("b", first), "n3", lone=True)
    assert isinstance(again, Conflict)
    assert isinstance(absent, Conflict)
    assert (again.found.body, again.found.fence, again.found.nonce) == ("first", first.fence, "n1")
    assert absent.found is None


# -- servers that do not serve -------------------------------------------------------------------


def test_a_server_that_became_a_replica_is_asked_afresh_and_serves_again_as_a_master(killable_valkey: ValkeyServer):
    engine = RedisEngine(killable_valkey.url)
    assert isinstance(_commit(engine, insert("a"), "n1", lone=True), Written)
    killable_valkey.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(Disconnected):
        _commit(engine, insert("b"), "n2", lone=True)
    assert engine._nodes._seed.spare() is None  # or the next try would ask the same one, and never learn
    killable_valkey.call("REPLICAOF", "NO", "ONE")
    assert isinstance(_commit(engine, insert("b"), "n2", lone=True), Written)
    engine.close()


def test_a_server_that_stays_silent_may_have_seen_the_write(valkey_server, redis_url, fault_proxy, monkeypatch):
    monkeypatch.setattr(redis_target, "SECONDS_TO_ANSWER", 0.2)
    proxy = fault_proxy(valkey_server.host, valkey_server.port)
    engine = RedisEngine(proxy.url(redis_url))
    assert isinstance(_commit(engine, insert("a"), "n1", lone=True), Written)
    proxy.hold(requests=False)
    with pytest.raises(Disconnected, match="no answer in time") as caught:
        _commit(engine, insert("b"), "n2", lone=True)
    assert caught.value.sent
    proxy.resume()
    assert isinstance(_commit(engine, insert("b"), "n2", lone=True), Conflict)  # it had landed
    engine.close()
