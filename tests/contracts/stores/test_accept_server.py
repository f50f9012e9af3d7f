"""`doctor --accept-server`: a person takes a server that took over as it is, and everybody is served again."""

import json

import pytest
from click.testing import CliRunner

from tests.servers import FaultProxy, ValkeyServer
from tests.servers.replicas import follow, promote
from tests.servers.standby import PostgresStandby
from twiceproof.cli.main import cli
from twiceproof.errors import Misuse
from twiceproof.records import Address, Insert
from twiceproof.stores.base import NoLedger
from twiceproof.stores.open import accept_server, open_store

AT = Address("shop/order:1", "claim", "self")


def doctor(url, *words, **said):
    return CliRunner().invoke(cli, ["--store", url, "doctor", *words], **said)


def taken_over(answer):
    return [one["level"] for one in json.loads(answer.stdout)["findings"] if one["name"] in ("failover", "server")]


def is_there(url):
    store = open_store(url)
    found = store.read(AT).block()
    store.close()
    return found.record is not None


def fill(url):
    store = open_store(url)
    store.write(Insert(AT, "mine", draw=True)).block()
    store.close()


@pytest.fixture
def redis_pair(killable_valkey):
    """A server with a ledger, and what makes another one take over its address."""
    with ValkeyServer() as other, FaultProxy(killable_valkey.host, killable_valkey.port) as address:
        url = address.url(killable_valkey.url)
        fill(url)

        def take_over():
            follow(other, killable_valkey)
            promote(other)
            address.lead_to(other.host, other.port)

        yield url, take_over


@pytest.fixture
def postgres_pair(killable_postgres):
    dsn = killable_postgres.create_database()
    with (
        FaultProxy(killable_postgres.host, killable_postgres.port) as address,
        PostgresStandby(killable_postgres) as standby,
    ):
        url = address.url(dsn)
        fill(url)

        def take_over():
            standby.catch_up()
            standby.promote()
            address.lead_to(standby.host, standby.port)

        yield url, take_over


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.slow)])
def pair(request):
    return request.getfixturevalue(f"{request.param}_pair")


@pytest.mark.server
def test_a_server_that_took_over_is_refused_until_somebody_accepts_it(pair):
    url, take_over = pair
    take_over()
    before = doctor(url, "--json")
    assert (before.exit_code, taken_over(before)) == (2, ["refuse"])
    accepted = doctor(url, "--accept-server", "--yes", "--json")
    assert "t" in json.loads(accepted.stdout)["accepted"]
    assert "refuse" not in taken_over(accepted)
    assert is_there(url)
    assert json.loads(doctor(url, "--accept-server", "--yes", "--json").stdout)["accepted"] is None


@pytest.mark.server
@pytest.mark.parametrize("said", ["", "n\n"])
def test_nothing_is_accepted_without_a_word(redis_pair, said):
    url, take_over = redis_pair
    take_over()
    answer = doctor(url, "--accept-server", input=said)
    assert answer.exit_code == 2
    assert "add --yes" in answer.stderr
    assert doctor(url).exit_code == 2


@pytest.mark.server
def test_where_nobody_took_over_there_is_nothing_to_accept(redis_pair):
    url, _ = redis_pair
    answer = doctor(url, "--accept-server", "--yes")
    assert "Nothing to accept" in answer.stdout
    assert "Accepted" not in answer.stdout


def test_a_file_has_no_server_to_accept(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    fill(url)
    assert "Nothing to accept" in doctor(url, "--accept-server", "--yes").stdout


def test_accepting_makes_no_ledger_where_there_is_none(tmp_path):
    with pytest.raises(NoLedger):
        accept_server(f"sqlite:///{tmp_path}/ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_has_no_server_to_accept():
    with pytest.raises(Misuse, match="nothing to accept"):
        accept_server("memory://")


def test_a_yes_to_nothing_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    fill(url)
    answer = doctor(url, "--yes")
    assert answer.exit_code == 2
    assert "--accept-server" in answer.stderr
