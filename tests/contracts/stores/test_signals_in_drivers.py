"""A handler that raises what a broken connection raises, while a driver waits: it is the caller's, and not retried."""

import signal

import pytest
from psycopg.conninfo import conninfo_to_dict

from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine
from twiceproof.stores.redis.engine import RedisEngine

pytestmark = pytest.mark.server

AT = Address("space", "claim", "self")
SOON = 0.05


@pytest.fixture(params=[TimeoutError, ConnectionResetError, OSError])
def kind(request):
    """As the soft time limit of a job runner may be."""
    return request.param


@pytest.fixture(params=["postgres", "redis"])
def silent(request, fault_proxy):
    """A store, and the proxy that makes its server fall silent."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_dsn")
        target = conninfo_to_dict(url)
        proxy = fault_proxy(target["host"], int(target["port"]))
        store = GroupedStore(PostgresEngine(proxy.url(url)))
    else:
        url = request.getfixturevalue("redis_url")
        server = request.getfixturevalue("valkey_server")
        proxy = fault_proxy(server.host, server.port)
        store = GroupedStore(RedisEngine(proxy.url(url)))
    yield store, proxy
    proxy.resume()
    store.close()


@pytest.fixture
def limit(kind):
    """Raises once, soon after it was set."""

    def ring(*_):
        raise kind("the caller's time is up")

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, SOON)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


ASKS = {
    "write": lambda store: store.write(Insert(AT, "mine")),
    "read": lambda store: store.read(AT),
    "scan": lambda store: store.scan("claim"),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_limit_that_hits_while_an_answer_is_waited_for_is_the_callers(silent, limit, kind, ask):
    store, proxy = silent
    ask(store).block()  # connected
    proxy.hold()
    limit()
    with pytest.raises(kind, match="the caller's time is up"):
        ask(store).block()
    proxy.resume()
    assert store.read(AT).block() is not None


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_limit_that_hits_while_a_connection_is_made_is_the_callers(silent, limit, kind, ask):
    store, proxy = silent
    proxy.cut()
    proxy.hold()
    limit()
    with pytest.raises(kind, match="the caller's time is up"):
        ask(store).block()
    proxy.resume()
    assert isinstance(store.write(Insert(Address("next", "claim", "self"), "")).block(), Written)
