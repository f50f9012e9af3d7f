"""etcd's own: a leader that is killed or cut off, a minority, what its errors mean, its doctor, what a URL may say."""

import http.client
import json
import threading
import time
from base64 import b64encode

import pytest

from tests.contracts.stores.row_race import kill_under_batches, parts
from twiceproof.clock import system_clock
from twiceproof.errors import BadWrite, Misuse, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Conflict, Insert, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.etcd import connection
from twiceproof.stores.etcd.connection import EtcdTable, meaning
from twiceproof.stores.etcd.doctor import findings
from twiceproof.stores.etcd.url import EtcdUrl
from twiceproof.stores.open import open_store
from twiceproof.stores.rows.table import Throttled


def at(key):
    return Address(f"s{key}", "claim", "self")


def writers(store, answers, count=4, keys=400):
    """Threads that all take the same keys, until one answer is an error."""

    def write(nth):
        for key in range(keys):
            try:
                answers.append((key, nth, store.write(Insert(at(key), str(nth), draw=True)).block()))
            except StoreUnavailable as error:
                answers.append((key, nth, error))

    threads = [threading.Thread(target=write, args=(nth,)) for nth in range(count)]
    for thread in threads:
        thread.start()
    return threads


def lose(cluster, leader, fault):
    if fault == "killed":
        leader.kill()
    elif fault == "stopped":
        cluster.freeze(leader)
    else:
        cluster.part(leader)


def make_good(cluster, leader, fault):
    if fault == "stopped":
        cluster.freeze(leader, frozen=False)
    elif fault == "cut off":
        cluster.part()


@pytest.mark.server
@pytest.mark.parametrize("fault", ["killed", "stopped", "cut off"])
def test_a_leader_that_goes_loses_nothing_and_nothing_is_taken_twice(parted_etcd, fault):
    store, answers = open_store(f"etcd://{parted_etcd.hosts}/x"), []
    threads = writers(store, answers)
    while len(answers) < 200:
        time.sleep(0.002)
    leader = parted_etcd.leader()
    lose(parted_etcd, leader, fault)
    for thread in threads:
        thread.join(90)
    make_good(parted_etcd, leader, fault)
    winners = [key for key, _, answer in answers if isinstance(answer, Written)]
    assert len(winners) == len(set(winners))
    found = store.read_each([at(key) for key in range(400)]).block()
    kept = {key: one.record for key, one in enumerate(found) if one.record is not None}
    assert set(winners) <= set(kept) and len(kept) == 400
    for key, nth, answer in answers:
        if isinstance(answer, Written):
            assert (kept[key].body, kept[key].fence) == (str(nth), answer.fence)
    store.close()


@pytest.fixture
def divided(parted_etcd, monkeypatch):
    """The leader is cut off from the others, which have elected another: a store at the old one, a store at the new."""
    monkeypatch.setattr(connection, "SECONDS_TO_ANSWER", 1.5)
    old = parted_etcd.leader()
    others = [member for member in parted_etcd.members if member is not old]
    here, there = (
        open_store(f"etcd://{','.join(f'{one.host}:{one.port}' for one in side)}/x") for side in ([old], others)
    )
    first = here.write(Insert(at(1), "first", "held", draw=True)).block()
    here.read(at(1)).block()
    parted_etcd.part(old)
    taken = there.write(Replace(at(1), "taken", "held", version=first.version, draw=True)).block()
    assert isinstance(taken, Written)
    here._patience = 0.5
    yield here, there, first, parted_etcd
    for store in (here, there):
        store.close()


@pytest.mark.server
def test_a_leader_that_is_cut_off_neither_takes_a_write_nor_tells_what_was(divided):
    here, there, first, cluster = divided
    with pytest.raises(StoreUnavailable):
        here.read(at(1)).block()
    with pytest.raises(StoreUnavailable):
        here.write(Insert(at(2), "mine", draw=True)).block()
    theirs = there.write(Insert(at(2), "theirs", draw=True)).block()
    cluster.part()
    here._patience = 20.0
    late = here.write(Replace(at(1), "late", "held", fence=first.fence)).block()
    assert isinstance(late, Conflict) and late.found.body == "taken"
    assert isinstance(theirs, Written) and here.read(at(2)).block().record.body == "theirs"


@pytest.mark.server
def test_a_planted_store_that_reads_what_the_member_has_is_told_what_was(divided, monkeypatch):
    """The control: without etcd's linearizable reads the old leader goes on telling of the first holder."""
    here, there, *_ = divided
    ask = here.engine.table.ask
    monkeypatch.setattr(here.engine.table, "ask", lambda path, body: ask(path, {**body, "serializable": True}))
    assert here.read(at(1)).block().record.body == "first"
    assert there.read(at(1)).block().record.body == "taken"


@pytest.mark.server
def test_a_minority_takes_no_write_and_says_so(killable_etcd):
    store = open_store(f"etcd://{killable_etcd.hosts}/x")
    assert isinstance(store.write(Insert(at(1), "")).block(), Written)
    for member in killable_etcd.members[1:]:
        member.kill()
    store._patience = 0.1
    with pytest.raises(StoreUnavailable):
        store.write(Insert(at(2), "")).block()
    for member in killable_etcd.members[1:]:
        member.start()
    killable_etcd.wait()
    store._patience = 10.0
    assert isinstance(store.write(Insert(at(1), "other")).block(), Conflict)
    store.close()


@pytest.mark.server
def test_after_a_kill_of_all_members_batches_are_whole_and_nothing_is_lost(killable_etcd):
    """All at once, in the middle of writing, and started again."""
    store = open_store(f"etcd://{killable_etcd.hosts}/x")
    kill_under_batches(store, killable_etcd.kill, lambda: restart(killable_etcd))
    store.close()


def restart(cluster):
    for member in cluster.members:
        member.start()
    cluster.wait()


@pytest.mark.server
def test_a_planted_store_that_writes_a_batch_in_parts_leaves_a_part(killable_etcd, monkeypatch):
    """The control: each record by a transaction of its own, and the cluster killed after the first."""
    store = open_store(f"etcd://{killable_etcd.hosts}/x")
    store._patience, table = 0.2, store.engine.table
    change_each = table.change_each

    def in_parts(transactions):
        (changes,) = transactions
        change_each([changes[:1]])
        killable_etcd.kill()
        return change_each([changes[1:]])

    monkeypatch.setattr(table, "change_each", in_parts)
    with pytest.raises(StoreUnavailable):
        store.write(*(Insert(one, "x", draw=True) for one in parts(0, 0))).block()
    monkeypatch.undo()
    restart(killable_etcd)
    assert [one.record is not None for one in store.read_each(parts(0, 0)).block()] == [True, False, False]
    store.close()


@pytest.mark.server
def test_revisions_that_were_compacted_away_are_not_needed(etcd_cluster):
    """What is compared is the record's own last revision, and that stays."""
    one, other = (open_store(f"etcd://{etcd_cluster.hosts}/compacted") for _ in range(2))
    first = one.write(Insert(at(1), "first", "held", draw=True)).block()
    for nth in range(5):
        other.write(Insert(at(f"else {nth}"), "")).block()
    revision = other.engine.table.ask("kv/range", {"key": b64encode(b"x").decode()})["header"]["revision"]
    other.engine.table.ask("kv/compaction", {"revision": revision, "physical": True})
    taken = other.write(Replace(at(1), "taken", "held", version=first.version, draw=True)).block()
    late = one.write(Replace(at(1), "late", "held", fence=first.fence)).block()
    assert isinstance(taken, Written) and isinstance(late, Conflict)
    assert late.found.body == one.read(at(1)).block().record.body == "taken"
    for store in (one, other):
        store.close()


@pytest.mark.server
def test_a_group_that_is_larger_than_a_request_may_be_goes_as_several(etcd_cluster):
    """etcd takes 1.5 MiB, and the gateway's letters are a third more."""
    store = open_store(f"etcd://{etcd_cluster.hosts}/large")
    largest = "x" * store.body_limit
    answers = store.write_each([[Insert(at(nth), largest)] for nth in range(4)]).block()
    assert [type(answer) for answer in answers] == [Written] * 4
    assert all(found.record.body == largest for found in store.read_each([at(nth) for nth in range(4)]).block())
    store.close()


class Gateway:
    """What an administrator asks of a member."""

    def __init__(self, cluster):
        self.link = http.client.HTTPConnection(cluster.host, cluster.port)
        self.token = {}

    def ask(self, path, **body):
        self.link.request("POST", f"/v3/auth/{path}", json.dumps(body).encode(), self.token)
        response = self.link.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer


@pytest.fixture
def guarded(killable_etcd):
    """A cluster that asks for names: `shop` may write under x/."""
    admin = Gateway(killable_etcd)
    for name in ("root", "shop"):
        admin.ask("user/add", name=name, password="p@ss")
        admin.ask("role/add", name=name)
        admin.ask("user/grant", user=name, role=name)
    keys = {"permType": "READWRITE", "key": b64encode(b"x/").decode(), "range_end": b64encode(b"x0").decode()}
    admin.ask("role/grant", name="shop", perm=keys)
    admin.ask("enable")
    admin.token = {"Authorization": admin.ask("authenticate", name="root", password="p@ss")["token"]}
    yield admin
    admin.link.close()


@pytest.mark.server
def test_a_change_of_somebodys_rights_costs_no_error(guarded, killable_etcd):
    """Every token is too old after it."""
    store = open_store(f"etcd://shop:p%40ss@{killable_etcd.hosts}/x")
    assert isinstance(store.write(Insert(at(1), "")).block(), Written)
    guarded.ask("role/add", name="another")
    assert isinstance(store.write(Insert(at(2), "")).block(), Written)
    store.engine.table._token = "not.1"
    assert isinstance(store.write(Insert(at(3), "")).block(), Written)
    store.close()
    with pytest.raises(StoreError, match="refused the name or the password"):
        open_store(f"etcd://shop:wrong@{killable_etcd.hosts}/x")


@pytest.mark.server
def test_a_name_where_none_is_asked_for_is_told(etcd_cluster):
    with pytest.raises(StoreError, match="asks for no name"):
        open_store(f"etcd://shop:s3cret@{etcd_cluster.hosts}/x")


@pytest.mark.parametrize("status", [500, 503])
def test_a_cluster_without_a_leader_is_no_wrong_password(status, monkeypatch):
    table = EtcdTable(EtcdUrl.of("etcd://shop:s3cret@127.0.0.1:1/x"), system_clock)
    monkeypatch.setattr(table, "_post", lambda *_: (status, {"error": "etcdserver: no leader"}))
    with pytest.raises(Disconnected, match="no leader") as lost:
        table.ask("kv/range", {})
    assert not lost.value.sent


@pytest.mark.server
def test_a_member_that_is_silent_is_found_out_once(killable_etcd):
    """Not once for each connection to it that is kept."""
    store = open_store(f"etcd://{killable_etcd.hosts}/x")
    table, (first, *_) = store.engine.table, killable_etcd.members
    kept = [table._borrow((first.host, first.port)) for _ in range(8)]
    for one in kept:
        table._give_back(*one)
    killable_etcd.freeze(first)
    monkey = time.monotonic()
    for key in range(20):
        store.write(Insert(at(key), "")).block()
        table._sick.clear()
    assert time.monotonic() - monkey < 12
    killable_etcd.freeze(first, frozen=False)
    store.close()


@pytest.mark.server
def test_another_cluster_at_the_same_address_is_refused(etcd_cluster, killable_etcd):
    store = open_store(f"etcd://{etcd_cluster.hosts}/another")
    store.engine.table.close()
    store.engine.table._closed = False
    store.engine.table.target = EtcdUrl.of(f"etcd://{killable_etcd.hosts}/another")
    store.engine.table._cluster = "1"
    with pytest.raises(StoreUnsafe, match="another cluster"):
        store.read(at(1)).block()
    store.close()


@pytest.mark.server
def test_the_doctor_looks_at_members_space_and_clocks(etcd_cluster):
    store = open_store(f"etcd://{etcd_cluster.hosts}/doctor")
    found = {finding.name: finding for finding in store.examine()}
    assert {name: finding.level for name, finding in found.items()} == dict.fromkeys(found, "ok")
    assert found["members"].found == "3: 1 may fail"
    store.close()


def test_few_members_and_much_waste_are_warned_about():
    one, four = [{"ID": "1"}], [{"ID": str(nth)} for nth in range(4)]
    assert [finding.level for finding in findings(one, {})] == ["warn", "ok"]
    assert findings(four, {})[0].level == "warn"
    assert findings(four, {"dbSize": 2**31, "dbSizeInUse": 2**20})[1].level == "warn"
    assert findings(four, {"dbSize": 2**31, "dbSizeInUse": 2**31})[1].level == "warn"


def test_what_errors_mean():
    assert isinstance(meaning(503, "etcdserver: too many requests"), Throttled)
    assert isinstance(meaning(500, "etcdserver: mvcc: database space exceeded"), StoreFull)
    assert isinstance(meaning(400, "etcdserver: request is too large"), BadWrite)
    for text in ("etcdserver: request timed out", "etcdserver: leader changed", ""):
        found = meaning(503, text)
        assert isinstance(found, Disconnected) and found.sent
    for status in (408, 499):  # what the gateway makes of "cancelled": it may have sent the request on
        found = meaning(status, "context canceled")
        assert isinstance(found, Disconnected) and found.sent


@pytest.mark.parametrize(
    "url", ["etcd://", "etcd://us er:s3cret/", "etcd://h:1/x?colour=red", "etcd://a/b:s3cret@h:1/x"]
)
def test_a_url_that_means_nothing_is_refused_without_secrets(url):
    try:
        EtcdUrl.of(url)
    except Misuse as refused:
        assert "s3cret" not in str(refused)
    else:
        assert url.startswith("etcd://a/")


def test_a_url_names_members_prefix_and_user():
    target = EtcdUrl.of("etcds://shop:p%40ss@a:1,b,[::1]:3/orders?ca=ca.pem")
    assert target.members == (("a", 1), ("b", 2379), ("::1", 3))
    assert (target.prefix, target.tls, target.ca) == ("orders/", True, "ca.pem")
    assert (target.user, target.password) == ("shop", "p@ss")
