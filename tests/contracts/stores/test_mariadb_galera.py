"""A ledger on three Galera nodes: one winner whichever node is asked, also when a node is killed or cut off."""

import contextlib
import threading

import pymysql
import pytest

from twiceproof.errors import StoreError
from twiceproof.operations import block
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Replace, Written
from twiceproof.stores.base import SPACE_BUSY
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb import engine as mariadb_engine
from twiceproof.stores.mariadb.connection import DEADLOCK, MariadbConnection, MariadbRefusal
from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.mariadb.rows import PRESENT, LedgerSql

NUMBERED_ALIKE = 500_000_000_000_000
LARGE = 200_000  # rows: a second or more of work for those that apply them
pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def cluster(galera_cluster):
    return galera_cluster


@pytest.fixture
def stores(cluster):
    name = cluster.create_database()
    made = [GroupedStore(MariadbEngine(node.url(name)), patience=20.0) for node in cluster.nodes]
    yield made
    for store in made:
        store.close()


def at(key, kind="claim"):
    return Address(f"shop/{key}", kind, "self")


def checked(key, held, kind):
    return Check(at(key, "run"), fence=held.fence), Insert(at(key, kind), "")


def due(store):
    for _ in range(4):
        yield from (one.at for one in store.due("claim", queues=["acme/q"], limit=30, hide=60.0).block().records)


def at_once(*work):
    barrier, answers = threading.Barrier(len(work)), [None] * len(work)

    def run(nth):
        barrier.wait()
        answers[nth] = work[nth]()

    threads = [threading.Thread(target=run, args=(nth,)) for nth in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_of_three_nodes_that_claim_a_key_at_once_one_wins(stores):
    for n in range(60):
        answers = at_once(*(lambda s=s, n=n: s.write(Insert(at(n), "", draw=True)).block() for s in stores))
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "Conflict", "Written"]


def rolled_back(stores, monkeypatch):
    """How often a node said 1213 while three nodes took the same keys, and what the callers heard."""
    codes, heard = [], []
    exchange = MariadbConnection.exchange

    def noted(link, *statements):
        try:
            return exchange(link, *statements)
        except MariadbRefusal as error:
            codes.append(error.code)
            raise

    def take(store, n):
        try:
            return type(store.write(Insert(at(f"again {n}"), "", draw=True)).block()).__name__
        except StoreError as error:
            return type(error).__name__

    monkeypatch.setattr(MariadbConnection, "exchange", noted)
    for n in range(200):
        heard += at_once(*(lambda s=s, n=n: take(s, n) for s in stores))
        if codes.count(DEADLOCK) >= 5:
            break
    return codes.count(DEADLOCK), set(heard)


def test_what_the_cluster_rolled_back_is_tried_again_unnoticed(stores, monkeypatch):
    times, heard = rolled_back(stores, monkeypatch)
    assert times >= 5
    assert heard == {"Written", "Conflict"}


def test_a_planted_store_that_does_not_try_again_is_heard_of(stores, monkeypatch):
    """The control: 1213 is an error like others."""
    monkeypatch.setattr(mariadb_engine, "TRANSIENT", ())
    times, heard = rolled_back(stores, monkeypatch)
    assert times >= 5
    assert "StoreUnavailable" in heard


def test_of_three_nodes_that_take_a_claim_over_at_once_one_wins(stores):
    """A node may roll a transaction back behind a statement whose rows it has sent, and then says nothing of it."""
    for n in range(150):
        first = stores[0].write(Insert(at(f"over {n}"), "", draw=True)).block()
        take = Replace(at(f"over {n}"), "", version=first.version, draw=True)
        answers = at_once(*(lambda s=s, take=take: s.write(take).block() for s in stores))
        assert sum(isinstance(answer, Written) for answer in answers) <= 1


@pytest.mark.parametrize("proved", [True, False])
def test_a_commit_that_found_nothing_to_commit_is_noticed_by_its_proof(stores, monkeypatch, proved):
    """Without it, the control, a claim is acknowledged that is not there."""
    commit = stores[0].engine.sql.commit

    def rolled_back(batches):
        monkeypatch.setattr(stores[0].engine.sql, "commit", commit)
        statements = commit(batches)
        place = statements.index(("COMMIT", ()))
        return [*statements[: place - 1], ("ROLLBACK", ()), *statements[place:]]

    if not proved:
        monkeypatch.setattr(mariadb_engine, "_refuse_unproved", lambda landed, proved: None)
    monkeypatch.setattr(stores[0].engine.sql, "commit", rolled_back)
    assert isinstance(stores[0].write(Insert(at(f"proof {proved}"), "", draw=True)).block(), Written)
    assert (stores[1].read(at(f"proof {proved}")).block().record is not None) is proved


def test_what_one_node_acknowledged_is_seen_on_the_others_at_once(stores):
    for n in range(50):
        landed = stores[n % 3].write(Insert(at(f"seen {n}"), "", draw=True)).block()
        found = stores[(n + 1) % 3].read(at(f"seen {n}")).block().record
        assert found.fence == landed.fence


def test_a_step_does_not_land_after_a_take_over_on_another_node(stores):
    for n in range(60):
        held = stores[0].write(Insert(at(f"run {n}", "run"), "", draw=True)).block()
        step, taken = at_once(
            lambda n=n, held=held: (
                stores[1]
                .write(Check(at(f"run {n}", "run"), fence=held.fence), Insert(at(f"run {n}", "step"), ""))
                .block()
            ),
            lambda n=n, held=held: (
                stores[2].write(Replace(at(f"run {n}", "run"), "", fence=held.fence, draw=True)).block()
            ),
        )
        assert isinstance(taken, Written)
        assert isinstance(step, Written | Conflict)
        again = stores[1].write(*checked(f"run {n}", held, "late")).block()
        assert isinstance(again, Conflict)


def step_after_take_over(cluster, stores, monkeypatch, name="slow"):
    """The answer to a step whose run is taken over, on another node, between the look and the commit. That node commits
    a large transaction first, so that the step's own node comes to the take-over only after it has sent its commit."""
    held = stores[0].write(Insert(at(name, "run"), "", draw=True)).block()
    engine = stores[1].engine
    writes, taken = engine.sql.writes, []
    large = cluster.nodes[2].connect(stores[0].engine._database)

    def overtaken(strict):
        if not taken:
            large.commit()
            taken.append(stores[2].write(Replace(at(name, "run"), "", fence=held.fence, draw=True)).block())
        return writes(strict)

    with large, large.cursor() as cursor, monkeypatch.context() as patched:
        patched.setattr(engine.sql, "writes", overtaken)
        patched.setattr(engine, "_commit", engine._commit_slowly)
        cursor.execute("CREATE OR REPLACE TABLE large (n INT PRIMARY KEY) ENGINE=InnoDB")
        large.begin()
        cursor.execute(f"INSERT INTO large SELECT seq FROM seq_1_to_{LARGE}")
        answer = stores[1].write(*checked(name, held, "step")).block()
    assert isinstance(taken[0], Written)
    return answer


def test_a_run_taken_over_between_look_and_commit_is_noticed(cluster, stores, monkeypatch):
    assert isinstance(step_after_take_over(cluster, stores, monkeypatch), Conflict)


def test_a_planted_check_that_writes_nothing_is_not_noticed_by_the_cluster(cluster, stores, monkeypatch):
    """The control: the step lands behind the take-over, unless its node has applied that in time by chance."""
    monkeypatch.setattr(LedgerSql, "_checks", lambda self, batches: [])
    answers = (step_after_take_over(cluster, stores, monkeypatch, f"slow {nth}") for nth in range(10))
    assert any(isinstance(answer, Written) for answer in answers)


def test_fences_of_a_key_grow_whichever_node_draws_them(stores):
    fences = [stores[0].write(Insert(at("fence"), "", draw=True)).block().fence]
    for n in range(30):
        answer = stores[n % 3].write(Replace(at("fence"), "", fence=fences[-1], draw=True)).block()
        fences.append(answer.fence)
    assert fences == sorted(set(fences))


def test_work_that_is_due_is_handed_out_once(stores):
    for n in range(60):
        stores[n % 3].write(Insert(at(f"due {n}"), "", queue="acme/q", due_in=0.0)).block()
    taken = at_once(*(lambda s=s: list(due(s)) for s in stores))
    met = [place for part in taken for place in part]
    assert len(met) == len(set(met)) == 60


def test_a_node_that_is_killed_loses_nothing_and_the_others_go_on(cluster, stores):
    landed = [stores[2].write(Insert(at(f"kill {n}"), "", draw=True)).block() for n in range(50)]
    assert all(isinstance(one, Written) for one in landed)
    cluster.nodes[2].kill()
    assert isinstance(stores[0].write(Insert(at("after"), "", draw=True)).block(), Written)
    assert all(stores[1].read(at(f"kill {n}")).block().record is not None for n in range(50))
    cluster.nodes[2].start()
    cluster.await_size(3, *cluster.nodes)
    assert isinstance(stores[2].write(Insert(at("after"), "", draw=True)).block(), Conflict)


def test_a_node_that_is_cut_off_acknowledges_nothing_and_tells_nothing(cluster, stores):
    alone = GroupedStore(MariadbEngine(cluster.nodes[2].url(stores[0].engine._database)), patience=1.0)
    stores[2].write(Insert(at("before"), "", draw=True)).block()
    assert alone.read(at("before")).block().record is not None
    cluster.nodes[2].provide("gmcast.isolate=1")
    try:
        with pytest.raises(StoreError):
            for n in range(5):
                alone.write(Insert(at(f"cut {n}"), "", draw=True)).block()
        with pytest.raises(StoreError):
            alone.read(at("before")).block()
        cluster.await_size(2, *cluster.nodes[:2])
        assert isinstance(stores[0].write(Insert(at("cut 0"), "", draw=True)).block(), Written | Conflict)
    finally:
        cluster.nodes[2].provide("gmcast.isolate=0")
        alone.close()
    cluster.await_size(3, *cluster.nodes)
    found = {store.read(at("cut 0")).block().record.fence for store in stores}
    assert len(found) == 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_session_is_ended_only_on_the_node_that_it_is_on(stores, cluster, node):
    """Each node numbers its sessions by itself: another one has somebody else's by the same number."""
    ledger = stores[0].engine._database
    joins, join = stores[0].engine.joins, stores[0].join(cluster.nodes[node].connect(ledger))
    block(join.begin())
    server, _, number = join._session.rpartition(" ")
    with cluster.nodes[0].connect() as bystander:
        its_own = bystander.thread_id()
        joins.end(f"{server} {its_own}")
        assert number.isdecimal() and gone(bystander) is (node == 0)
    join.drop()


def gone(session):
    with contextlib.suppress(pymysql.OperationalError), session.cursor() as cursor:
        return not cursor.execute("SELECT 1")
    return True


def test_a_duplicate_numbered_like_ours_is_told_with_its_body(stores, monkeypatch):
    """Nodes number by their clocks, and may draw equal numbers. A node leaves out the bodies of what has ours."""
    second = Batch([Insert(at("alike"), "second")], "2")
    with monkeypatch.context() as patch:
        for sql in (store.engine.sql for store in stores[:2]):
            for name in ("stamp", "stamp_again"):
                patch.setattr(sql, name, (getattr(sql, name)[0].replace(PRESENT, str(NUMBERED_ALIKE)), ()))
        first = stores[0].write(Insert(at("alike"), "first")).block()
        assert isinstance(first, Written) and int(first.version) == NUMBERED_ALIKE + 1
        assert stores[1].engine.commit([second]) == [SPACE_BUSY]  # it is tried again with another number
    (told,) = stores[1].engine.commit([second])
    assert isinstance(told, Conflict) and told.found.body == "first"
