"""A Galera node may roll a transaction back between two of its statements, tell nobody, and go on with the next one.

Here the rollback is planted at each place of a commit, alone and together with the other node's write that caused it.
"""

from contextlib import closing

import pymysql
import pytest

from tests.contracts.stores.test_mariadb_galera import at_once
from twiceproof import App
from twiceproof.operations import block
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb import engine as mariadb_engine
from twiceproof.stores.mariadb.connection import DEADLOCK, MariadbConnection
from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.mariadb.join import MariadbJoins, PymysqlDriver
from twiceproof.stores.mariadb.rows import LedgerSql

pytestmark = [pytest.mark.server, pytest.mark.slow]

COMMIT, ROLLBACK = ("COMMIT", ()), ("ROLLBACK", ())
BEHIND = -1
TAKEN_OVER = ("UPDATE twiceproof_records SET version = version + 1, fence = fence + 1 WHERE kind = 'run'", ())
PUT_OFF = ("UPDATE twiceproof_records SET version = version + 1, due_at = due_at + 60 WHERE queue <> ''", ())


@pytest.fixture(scope="module")
def database(galera_cluster):
    return galera_cluster.create_database()


@pytest.fixture
def urls(galera_cluster, database):
    MariadbEngine(galera_cluster.nodes[0].url(database)).close()
    with galera_cluster.nodes[0].connect(database) as db, db.cursor() as cursor:
        cursor.execute("DELETE FROM twiceproof_records")
        cursor.execute("CREATE OR REPLACE TABLE effects (name VARCHAR(40) PRIMARY KEY) ENGINE=InnoDB")
    return [node.url(database) for node in galera_cluster.nodes]


@pytest.fixture
def stores(urls):
    made = [GroupedStore(MariadbEngine(url), patience=20.0) for url in urls]
    yield made
    for store in made:
        store.close()


def at(kind, key="a"):
    return Address(f"shop/{key}", kind, "self")


def insert(store, *places, **more):
    return store.write(*(Insert(place, "", draw=True, **more) for place in places)).block()


def there(store, place):
    return store.read(place).block().record


class Planted:
    """The first packet with a COMMIT gets these statements in its midst: after `place` others, or BEHIND the COMMIT."""

    def __init__(self, monkeypatch, place, *statements):
        self.length = 0
        exchange = MariadbConnection._exchange

        def exchanged(link, db, given):
            if COMMIT in given and not self.length:
                self.length = list(given).index(COMMIT)
                split = self.length + 1 if place == BEHIND else place
                given = [*given[:split], *statements, *given[split:]]
            return exchange(link, db, given)

        monkeypatch.setattr(MariadbConnection, "_exchange", exchanged)


def everywhere(prepare, work, *statements, last=0):
    """Do it with the statements planted at each place in turn, up to the COMMIT or to one before it."""
    place, length = 0, 2
    while place <= length - last:
        made = prepare(place)
        with pytest.MonkeyPatch.context() as patch:
            planted = Planted(patch, place, *statements)
            work(place, *made)
        length = planted.length
        place += 1
    assert length >= 2


def lone_insert(store, key):
    return [[Insert(at("claim", key), "", draw=True)]], {at("claim", key): True}


def lone_replace(store, key):
    held = insert(store, at("claim", key))
    return [[Replace(at("claim", key), "", "done", version=held.version)]], {at("claim", key): True}


def step(store, key):
    held = insert(store, at("run", key))
    return [[Check(at("run", key), fence=held.fence), Insert(at("step", key), "")]], {at("step", key): True}


def removal(store, key):
    held = insert(store, at("claim", key))
    return [[Remove(at("claim", key), fence=held.fence)]], {at("claim", key): False}


def checked_removal(store, key):
    held = insert(store, at("run", key), at("step", key))
    writes = Check(at("run", key), fence=held.fence), Remove(at("step", key), version=held.version)
    return [writes], {at("step", key): False}


def several(store, key):
    """A claim lands beside a step: its rows are told while the step's conditions are locked."""
    steps, there_after = step(store, key)
    claims, more = lone_insert(store, f"{key} beside")
    return [*steps, *claims], there_after | more


def committed(store, slowly, writes):
    """In one group. `slowly`: as after a misfit, by one request that looks and one that writes."""
    engine = store.engine
    with pytest.MonkeyPatch.context() as patch:
        if slowly:
            patch.setattr(engine, "_commit", engine._commit_slowly)
        return store.write_each(writes).block()


@pytest.mark.parametrize("make", [lone_insert, lone_replace, step, removal, checked_removal, several])
@pytest.mark.parametrize("slowly", [False, True])
def test_what_was_rolled_back_untold_is_done_again_as_a_whole(stores, make, slowly):
    def work(place, writes, expected):
        answers = committed(stores[0], slowly, writes)
        assert [type(answer) for answer in answers] == [Written] * len(writes)
        assert {where: there(stores[1], where) is not None for where in expected} == expected

    everywhere(lambda place: make(stores[0], f"{make.__name__} {place}"), work, ROLLBACK)


def overtaken(stores, slowly):
    """What a step is answered, and whether it is there, with a take-over planted at each place."""
    found = []

    def work(place, writes, _):
        answers = committed(stores[0], slowly, writes)
        found.append((type(answers[0]), there(stores[1], at("step", place)) is not None))

    # Behind the last look for the transaction there is nothing left to land.
    everywhere(lambda place: several(stores[0], place), work, ROLLBACK, TAKEN_OVER, last=1)
    return set(found)


@pytest.mark.parametrize("slowly", [False, True])
def test_a_step_never_lands_behind_the_take_over_that_rolled_it_back(stores, slowly):
    assert overtaken(stores, slowly) == {(Conflict, False)}


@pytest.mark.parametrize("slowly", [False, True])
def test_a_planted_packet_that_goes_on_after_a_rollback_lands_the_step(stores, monkeypatch, slowly):
    """The control."""
    monkeypatch.setattr(LedgerSql, "together", lambda self, statements: list(statements))
    assert (Conflict, True) in overtaken(stores, slowly)


@pytest.mark.parametrize("proved", [True, False])
def test_a_removal_whose_commit_found_nothing_is_done_again(stores, monkeypatch, proved):
    """Without the proof, the control, it is acknowledged and the record stays."""
    if not proved:
        monkeypatch.setattr(mariadb_engine, "_is_changed", lambda rows: True)
    writes, _ = removal(stores[0], "removed")
    packet = stores[0].engine.sql.commit([Batch(tuple(writes[0]), "")])
    Planted(monkeypatch, packet.index(COMMIT), ROLLBACK)
    assert isinstance(stores[0].write(*writes[0]).block(), Written)
    assert (there(stores[1], at("claim", "removed")) is None) is proved


@pytest.mark.parametrize("code", [1047, 1205], ids=["cut off", "not in step"])
@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("make", [lone_insert, step])
def test_a_commit_is_recognised_if_the_node_fails_right_behind_it(stores, monkeypatch, make, slowly, code):
    """The node refuses to look whether the commit has landed. It has, and is not told as somebody else's."""
    writes, expected = make(stores[0], f"behind {code} {slowly} {make.__name__}")
    Planted(monkeypatch, BEHIND, (f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}", ()))
    (answer,) = committed(stores[0], slowly, writes)
    assert isinstance(answer, Written)
    assert [there(stores[1], where).version for where in expected] == [answer.version]


def test_of_three_nodes_that_remove_a_record_at_once_one_wins(stores):
    for n in range(80):
        held = insert(stores[0], at("claim", n))
        gone = Remove(at("claim", n), fence=held.fence)
        answers = at_once(*(lambda s=s, gone=gone: s.write(gone).block() for s in stores))
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Conflict", "Written"]


@pytest.mark.parametrize("proved", [True, False])
def test_what_is_handed_out_is_hidden_from_the_other_nodes(stores, monkeypatch, proved):
    """Without the proof, the control, two nodes hand the same work out."""
    if not proved:
        monkeypatch.setattr(mariadb_engine, "_is_changed", lambda rows: True)
    insert(stores[0], at("claim", "due"), queue="acme/q", due_in=0.0)
    Planted(monkeypatch, 2, ROLLBACK)  # behind the update and the look whether the transaction lives
    mine, others = (list(due(store)) for store in stores[:2])
    assert mine == [at("claim", "due")]
    assert others == ([] if proved else mine)


def test_work_that_another_node_took_meanwhile_is_not_handed_out(stores, monkeypatch):
    before = insert(stores[0], at("claim", "due"), queue="acme/q", due_in=0.0)
    Planted(monkeypatch, 0, ROLLBACK, PUT_OFF)
    assert list(due(stores[0])) == []
    assert int(there(stores[1], at("claim", "due")).version) == int(before.version) + 1


def due(store):
    yield from (one.at for one in store.due("claim", queues=["acme/q"], limit=30, hide=60.0).block().records)


# -- in a user's transaction ---------------------------------------------------------------------


def joined(store, name, *writes):
    """A user's row and these writes, in one transaction of theirs. None: the cluster refused it."""
    with closing(store.joins.connect(awaited=False)) as db, db.cursor() as cursor:
        join = store.join(db)
        try:
            block(join.begin())
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", (name,))
            answer = block(join.write(*writes))
            if isinstance(answer, Written):
                block(join.commit())
        except pymysql.err.OperationalError as error:
            assert error.args[0] == DEADLOCK
            return None
        return answer


def step_of(key, held, body=""):
    return Check(at("run", key), fence=held.fence), Insert(at("step", key), body)


def effects(stores, *names):
    with closing(stores[0].joins.connect(awaited=False)) as db, db.cursor() as cursor:
        cursor.execute("SET SESSION wsrep_sync_wait = 7")
        cursor.execute("SELECT name FROM effects")
        return [name for (name,) in cursor.fetchall() if name in names]


def test_of_three_nodes_that_end_a_step_in_users_transactions_one_wins(stores):
    for n in range(60):
        held = insert(stores[0], at("run", n))
        names = [f"{n} on {nth}" for nth in range(3)]
        tries = [(store, name, *step_of(n, held, name)) for store, name in zip(stores, names, strict=True)]
        answers = at_once(*(lambda each=each: joined(*each) for each in tries))
        (won,) = (name for name, answer in zip(names, answers, strict=True) if isinstance(answer, Written))
        assert there(stores[1], at("step", n)).body == won
        assert effects(stores, *names) == [won]


def test_a_users_transaction_and_a_take_over_on_another_node_do_not_both_land(stores):
    for n in range(60):
        held = insert(stores[0], at("run", n))
        ends, takes = (Replace(at("run", n), "", word, version=held.version) for word in ("done", "taken"))
        ended, taken = at_once(
            lambda n=n, ends=ends: joined(stores[1], f"{n} late", ends, Insert(at("step", n), "")),
            lambda takes=takes: stores[2].write(takes).block(),
        )
        assert isinstance(taken, Conflict) is isinstance(ended, Written)
        assert (effects(stores, f"{n} late") != []) is isinstance(ended, Written)
        assert (there(stores[0], at("step", n)) is not None) is isinstance(ended, Written)


def roll_back_before(monkeypatch, beginning, meanwhile):
    """The user's transaction is gone before the first statement that has these words."""
    rows, met = PymysqlDriver._rows, []

    def planted(driver, sql, values):
        if beginning in sql and not met:
            met.append(sql)
            rows(driver, "ROLLBACK", ())
            meanwhile()
        return rows(driver, sql, values)

    monkeypatch.setattr(PymysqlDriver, "_rows", planted)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_step_whose_transaction_was_rolled_back_under_it_does_not_land(stores, monkeypatch, noticed):
    """Without the second look for its savepoint, the control, it lands without its effect, behind the take-over."""
    if not noticed:
        monkeypatch.setattr(stores[0].joins, "_sql", LedgerSql(stores[0].engine._database))
    held = insert(stores[0], at("run", "under"))
    take = Replace(at("run", "under"), "", fence=held.fence, draw=True)
    roll_back_before(monkeypatch, "INSERT INTO", lambda: stores[1].write(take).block())
    answer = joined(stores[0], "under", *step_of("under", held))
    assert isinstance(answer, Written) is not noticed
    assert (there(stores[1], at("step", "under")) is None) is noticed
    assert effects(stores, "under") == []


@pytest.mark.parametrize("proved", [True, False])
def test_a_users_transaction_whose_commit_found_nothing_is_done_again(urls, stores, monkeypatch, proved):
    """Without the proof, the control, the step is taken for done."""
    if not proved:
        monkeypatch.setattr(MariadbJoins, "prove", lambda self, landed: None)
    commit, lost = PymysqlDriver.commit, []

    def committing(driver):
        if not lost:
            lost.append(driver)
            driver.handle.rollback()
        yield from commit(driver)

    monkeypatch.setattr(PymysqlDriver, "commit", committing)
    with App(urls[0]) as app:

        @app.transaction
        def reserve(connection, name: str) -> str:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO effects (name) VALUES (%s)", (name,))
            return name

        @app.flow(key="order:{name}")
        def buy(name: str) -> str:
            return reserve(name)

        assert buy("apple") == "apple"
        assert lost
    assert effects(stores, "apple") == (["apple"] if proved else [])


def test_a_record_with_a_number_of_the_future_is_written_when_that_has_come(stores):
    """It was written by a node whose clock is ahead."""
    held = insert(stores[0], at("run"), at("step"))
    with closing(stores[0].joins.connect(awaited=False)) as db, db.cursor() as cursor:
        cursor.execute("UPDATE twiceproof_records SET version = version + 4194304 WHERE kind = 'step'")  # a second
        db.commit()
    ahead = there(stores[1], at("step"))
    with closing(stores[1].joins.connect(awaited=False)) as db:
        join = stores[1].join(db)
        block(join.begin())
        writes = Check(at("run"), fence=held.fence), Replace(at("step"), "new", version=ahead.version)
        answer = block(join.write(*writes))
        block(join.commit())
    assert isinstance(answer, Written) and int(answer.version) > int(ahead.version)
    assert there(stores[0], at("step")).body == "new"
