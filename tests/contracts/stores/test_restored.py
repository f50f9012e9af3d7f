"""A ledger that was brought back from a backup draws no fence a second time: a late holder's write does not land."""

import errno
import json
import shutil
import subprocess

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from tests.servers import ValkeyServer
from twiceproof.cli.main import cli
from twiceproof.records import Address, Conflict, Insert, Replace, Written
from twiceproof.stores.open import accept_server, open_store

AT = Address("shop/order:1", "claim", "self")


class SqliteSite:
    """Its file is copied while nothing is open, and copied back over itself."""

    def __init__(self, directory):
        self.directory = directory
        self.url = f"sqlite:///{directory}/ledger.db"

    def back_up(self):
        shutil.copyfile(self.directory / "ledger.db", self.directory / "backup.db")

    def restore(self):
        for part in ("-wal", "-shm"):
            (self.directory / f"ledger.db{part}").unlink(missing_ok=True)
        shutil.copyfile(self.directory / "backup.db", self.directory / "ledger.db")


class PostgresSite:
    """A copy of the database on the same server, which takes its place."""

    def __init__(self, server):
        self.server = server
        self.url = server.create_database()
        self.name = conninfo_to_dict(self.url)["dbname"]

    def _run(self, *statements):
        with psycopg.connect(self.server.dsn(), autocommit=True) as db:
            for statement in statements:
                db.execute(statement)

    def back_up(self):
        self._run(f"CREATE DATABASE {self.name}_backup TEMPLATE {self.name}")

    def restore(self):
        self._run(f"DROP DATABASE {self.name} WITH (FORCE)", f"ALTER DATABASE {self.name}_backup RENAME TO {self.name}")


class MariadbSite:
    """Dumped, and loaded over what is there."""

    def __init__(self, server):
        self.server = server
        self.url = server.create_database()
        self.name = self.url.rpartition("/")[2]

    def _client(self, program, *arguments, **pipes):
        where = [f"--host={self.server.host}", f"--port={self.server.port}", "--user=root", "--protocol=tcp"]
        return subprocess.run([program, "--no-defaults", *where, *arguments, self.name], check=True, **pipes)

    def wait_for_another_second(self):
        """Tables know the second in which they were made."""
        self._client("mariadb", input=b"SELECT SLEEP(1 - MOD(UNIX_TIMESTAMP(NOW(6)), 1))", stdout=subprocess.DEVNULL)

    def back_up(self):
        self.dump = self._client("mariadb-dump", "--single-transaction", capture_output=True).stdout

    def restore(self):
        self._client("mariadb", input=self.dump)


class RowsSite(PostgresSite):
    """Rows and counter are put back into the tables that are there, as a dump of the data alone does."""

    def back_up(self):
        with psycopg.connect(self.url) as db:
            self.number = db.execute("SELECT last_value FROM twiceproof.twiceproof_number").fetchone()[0]
            self.facts = db.execute("SELECT name, value FROM twiceproof.twiceproof_facts").fetchall()

    def restore(self):
        with psycopg.connect(self.url) as db:
            db.execute("TRUNCATE twiceproof.twiceproof_records, twiceproof.twiceproof_facts")
            db.cursor().executemany("INSERT INTO twiceproof.twiceproof_facts VALUES (%s, %s)", self.facts)
            db.execute("SELECT setval('twiceproof.twiceproof_number', %s)", (self.number,))


def copy(source, target):
    """With the owner: the server runs as somebody else where we are root."""
    subprocess.run(["cp", "-Rp", str(source), str(target)], check=True)


class RedisSite:
    """Its files are copied back while it is stopped. It had been started once more since they were copied."""

    def __init__(self, server):
        self.server = server
        self.url = server.url

    def back_up(self):
        self.server.stop()
        self.backup = self.server.directory.with_name(self.server.directory.name + "-backup")
        copy(self.server.directory / "appendonlydir", self.backup)
        self.server.start()

    def restore(self):
        self.server.stop()
        shutil.rmtree(self.server.directory / "appendonlydir")
        copy(self.backup, self.server.directory / "appendonlydir")
        shutil.rmtree(self.backup)
        self.server.start()


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.server),
        pytest.param("rows", marks=pytest.mark.server),
        pytest.param("redis", marks=pytest.mark.server),
        pytest.param("mariadb", marks=pytest.mark.server),
        pytest.param("galera", marks=[pytest.mark.server, pytest.mark.slow]),
    ]
)
def site(request, tmp_path):
    if request.param == "sqlite":
        yield SqliteSite(tmp_path)
    elif request.param == "redis":
        with ValkeyServer() as server:
            yield RedisSite(server)
    elif request.param in ("mariadb", "galera"):
        found = request.getfixturevalue({"mariadb": "mariadb_server", "galera": "galera_cluster"}[request.param])
        server = found if request.param == "mariadb" else found.nodes[0]
        made = MariadbSite(server)
        yield made
        server.drop_database(made.url)
    else:
        server = request.getfixturevalue("postgres_server")
        made = (PostgresSite if request.param == "postgres" else RowsSite)(server)
        yield made
        server.drop_database(made.url)


def claim():
    return Insert(AT, "mine", state="held", draw=True, lease=30.0)


def taken(url):
    store = open_store(url)
    answer = store.write(claim()).block()
    store.close()
    assert isinstance(answer, Written)
    return answer.fence


def test_after_a_restore_no_fence_is_drawn_twice_and_a_late_holder_is_refused(site):
    open_store(site.url).close()
    site.back_up()
    before = taken(site.url)
    site.restore()
    after = taken(site.url)
    assert after > before
    store = open_store(site.url)
    late = store.write(Replace(AT, "late", state="done", fence=before)).block()
    in_time = store.write(Replace(AT, "in time", state="done", fence=after)).block()
    store.close()
    assert isinstance(late, Conflict)
    assert isinstance(in_time, Written)


def test_restored_again_and_again_no_fence_is_drawn_twice(site):
    open_store(site.url).close()
    fences = []
    for _ in range(3):
        site.back_up()
        fences.append(taken(site.url))
        site.restore()
    fences.append(taken(site.url))
    assert fences == sorted(set(fences))


def test_every_number_is_small_enough_for_those_who_count_in_doubles(site):
    """JavaScript, Lua and most tools that read JSON."""
    assert 0 < taken(site.url) < 2**53


@pytest.mark.server
@pytest.mark.parametrize("kind", [PostgresSite, RowsSite])
def test_the_doctor_tells_of_a_restore_until_somebody_accepts_it(postgres_server, kind):
    site = kind(postgres_server)
    open_store(site.url).close()
    assert told(site.url)[0] == "ok"
    site.back_up()
    site.restore()
    assert told(site.url)[0] == "warn" and "restored or copied" in told(site.url)[1]
    before = taken(site.url)
    answer = CliRunner().invoke(cli, ["--store", site.url, "doctor", "--accept-server", "--yes", "--json"])
    assert "restored or copied" in json.loads(answer.stdout)["accepted"]
    assert told(site.url)[0] == "ok"
    store = open_store(site.url)
    assert store.write(Insert(Address("other", "claim", "self"), "", draw=True)).block().fence > before + 2**27
    store.close()
    postgres_server.drop_database(site.url)


def told(url):
    (found,) = findings(url, "server")
    return found["level"], found["found"]


def findings(url, name):
    answer = CliRunner().invoke(cli, ["--store", url, "doctor", "--json"])
    return [one for one in json.loads(answer.stdout)["findings"] if one["name"] == name]


class ReplacedFile(SqliteSite):
    """A copy takes the place of the file. It may well get the inode that the file had."""

    def restore(self):
        (self.directory / "ledger.db").unlink()
        super().restore()


class CopiedFile(SqliteSite):
    """The copy is opened where it is; as a whole, it has the file's attributes too."""

    def restore(self):
        shutil.copy2(self.directory / "ledger.db", self.directory / "copy.db")
        self.url = f"sqlite:///{self.directory}/copy.db"


@pytest.fixture(params=[SqliteSite, ReplacedFile, CopiedFile, pytest.param(MariadbSite, marks=pytest.mark.server)])
def noticing_site(request, tmp_path):
    if request.param is not MariadbSite:
        yield request.param(tmp_path)
        return
    server = request.getfixturevalue("mariadb_server")
    made = MariadbSite(server)
    yield made
    server.drop_database(made.url)


def test_the_doctor_tells_that_the_ledger_was_restored_until_somebody_accepts_it(noticing_site):
    site = noticing_site
    taken(site.url)
    site.back_up()
    open_store(site.url).close()
    assert findings(site.url, "restored") == []
    if isinstance(site, MariadbSite):
        site.wait_for_another_second()
    site.restore()
    (found,) = findings(site.url, "restored")
    assert found["level"] == "warn" and "restored" in found["found"] and "--accept-server" in found["advice"]
    assert findings(site.url, "restored") == [found]
    answer = CliRunner().invoke(cli, ["--store", site.url, "doctor", "--accept-server", "--yes", "--json"])
    assert json.loads(answer.stdout)["accepted"] == found["found"]
    open_store(site.url).close()
    assert findings(site.url, "restored") == []


def test_where_files_have_no_attributes_there_is_no_false_alarm(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr("os.setxattr", unsupported)
    url = f"sqlite:///{tmp_path}/ledger.db"
    taken(url)
    open_store(url).close()
    assert findings(url, "restored") == []


@pytest.mark.server
def test_accepting_a_server_skips_numbers_even_where_nothing_was_noticed(postgres_dsn):
    before = taken(postgres_dsn)
    accept_server(postgres_dsn)
    store = open_store(postgres_dsn)
    assert store.write(Insert(Address("other", "claim", "self"), "", draw=True)).block().fence > before + 2**27
    store.close()


@pytest.mark.server
def test_a_ledger_that_is_put_back_under_an_open_store_is_noticed_by_its_next_number(postgres_dsn):
    """No connection breaks, so nobody looks: behind a pooler, or where rows are put back by hand."""
    store = open_store(postgres_dsn)
    first = [store.write(Insert(Address(f"s{n}", "claim", "self"), "", draw=True)).block().fence for n in range(5)][-1]
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("SELECT setval('twiceproof.twiceproof_number', 1)")
    store.write(Insert(Address("one", "claim", "self"), "", draw=True)).block()
    third = store.write(Insert(Address("two", "claim", "self"), "", draw=True)).block().fence
    store.close()
    assert third > first


@pytest.mark.server
def test_stores_that_open_at_once_never_set_the_counter_back(postgres_dsn):
    fences = []
    for _ in range(20):
        store = open_store(postgres_dsn)
        other = open_store(postgres_dsn)
        for one in (store, other, store):
            fences.append(one.write(Insert(Address(f"s{len(fences)}", "claim", "self"), "", draw=True)).block().fence)
        store.close()
        other.close()
    assert fences == sorted(set(fences))
