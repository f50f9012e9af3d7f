"""What the Redis store refuses, and the twin that it takes."""

import pytest

from tests.servers import ValkeyServer
from twiceproof.errors import Misuse, StoreError, StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Batch, Insert
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis.connection import named
from twiceproof.stores.redis.doctor import RedisFacts, findings, is_best_effort, refuse_unsafe
from twiceproof.stores.redis.engine import RedisEngine
from twiceproof.stores.redis.url import RedisUrl

SOUND = {
    "redis_version": "7.2.4",
    "role": "master",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "maxmemory_policy": "noeviction",
    "connected_slaves": "0",
    "maxmemory": "0",
    "used_memory": "1000000",
    "cluster_enabled": "0",
}
SETTINGS = {"appendfsync": "always", "min-replicas-to-write": "0"}
LOCAL = "redis://127.0.0.1:6379/0"


def facts(settings=SETTINGS, **changes):
    return RedisFacts("127.0.0.1:6379", SOUND | {name: str(value) for name, value in changes.items()}, settings)


def level(name, found, url=LOCAL):
    return next(finding.level for finding in findings(RedisUrl.of(url), found) if finding.name == name)


def test_a_sound_server_is_taken():
    assert {finding.level for finding in findings(RedisUrl.of(LOCAL), facts())} == {"ok"}
    refuse_unsafe(RedisUrl.of(LOCAL), [facts()])
    assert not is_best_effort(RedisUrl.of(LOCAL), [facts()])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("persistence", {"aof_enabled": 0}),
        ("maxmemory-policy", {"maxmemory_policy": "allkeys-lru"}),
        ("maxmemory-policy", {"maxmemory_policy": "volatile-lru"}),
        ("version", {"redis_version": "6.0.16"}),
        ("version", {"redis_version": "5.0.14"}),
    ],
)
def test_what_would_lose_acknowledged_writes_is_refused(name, bad):
    assert level(name, facts(**bad)) == "refuse"
    with pytest.raises(StoreUnsafe) as error:
        refuse_unsafe(RedisUrl.of(LOCAL), [facts(), facts(**bad)])
    assert error.value.findings[0].name == name
    assert error.value.findings[0].advice in str(error.value)


@pytest.mark.parametrize("version", ["6.2.0", "6.10.1", "7.0.15", "8.0.0", "10.1.0"])
def test_every_later_version_is_taken(version):
    assert level("version", facts(redis_version=version)) == "ok"


def test_a_cache_may_forget_and_says_so():
    url = LOCAL + "?durability=cache"
    forgetful = facts(aof_enabled=0, maxmemory_policy="allkeys-lru")
    refuse_unsafe(RedisUrl.of(url), [forgetful])
    assert level("persistence", forgetful, url) == "warn"
    assert is_best_effort(RedisUrl.of(url), [forgetful])


def test_replicas_make_it_best_effort():
    assert is_best_effort(RedisUrl.of(LOCAL), [facts(connected_slaves=1)])
    assert level("replicas", facts(connected_slaves=1)) == "refuse"
    assert level("replicas", facts({**SETTINGS, "min-replicas-to-write": "1"}, connected_slaves=1)) == "warn"
    assert level("replicas", facts(connected_slaves=0)) == "ok"


@pytest.mark.parametrize(("found", "expected"), [("always", "ok"), ("everysec", "warn"), ("no", "warn")])
def test_how_often_the_file_is_synced(found, expected):
    assert level("appendfsync", facts({"appendfsync": found})) == expected


def test_what_cannot_be_seen_is_said():
    assert level("appendfsync", facts({})) == "warn"


def test_a_memory_that_is_nearly_full_is_warned_of():
    assert level("memory", facts(maxmemory=1_050_000)) == "warn"
    assert level("memory", facts(maxmemory=2_000_000)) == "ok"


def test_a_disk_that_failed_is_refused():
    assert level("disk", facts(aof_last_write_status="err")) == "refuse"
    assert level("disk", facts()) == "ok"


# -- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        "redis://joe:hunter2@h:port/0",
        "redis://joe:hunter2@h/0?durability=maybe",
        "redis://joe:hunter2@h/0?lanes=0",
        "redis://joe:hunter2@h/0?lanes=x",
        "redis://joe:hunter2@h/0?socket_timeout=900",
        "redis://joe:hunter2@h/0?ssl_ca_certs=x",
        "redis+cluster://joe:hunter2@h/3",
    ],
)
def test_a_bad_url_is_refused_without_a_word_about_the_password(bad):
    with pytest.raises(Misuse) as error:
        RedisUrl.of(bad)
    assert "hunter2" not in str(error.value)


def test_a_good_url_is_read():
    target = RedisUrl.of("rediss+cluster://joe:hunter%232@h:7000?lanes=64&durability=cache&ssl_ca_certs=ca.pem")
    assert (target.host, target.port, target.cluster, target.tls) == ("h", 7000, True, True)
    assert (target.lanes, target.durable) == (64, False)
    assert target.settings["password"] == "hunter#2"
    assert target.settings["ssl_ca_certs"] == "ca.pem"
    assert target.settings["retry"].get_retries() == 0


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("db", False)])
def test_loopback(host, local):
    assert RedisUrl.of(f"redis://{host}/0").loopback is local


# -- real servers --------------------------------------------------------------------------------


def examined(url):
    engine = RedisEngine(url)
    found = {finding.name: finding for finding in engine.examine()}
    engine.close()
    return found


@pytest.mark.server
def test_the_tests_own_server_is_sound(redis_url):
    assert {finding.level for finding in examined(redis_url).values()} == {"ok"}


@pytest.mark.server
@pytest.mark.parametrize(
    ("setting", "value"),
    [("appendonly", "no"), ("maxmemory-policy", "allkeys-lru"), ("maxmemory-policy", "volatile-ttl")],
)
def test_an_unsafe_server_is_not_opened(killable_valkey: ValkeyServer, setting, value):
    RedisEngine(killable_valkey.url).close()
    killable_valkey.call("CONFIG", "SET", setting, value)
    with pytest.raises(StoreUnsafe):
        RedisEngine(killable_valkey.url)
    engine = RedisEngine(killable_valkey.url + "?durability=cache")
    assert engine.best_effort
    engine.close()


@pytest.mark.server
def test_a_replica_is_refused_and_its_master_is_best_effort(killable_valkey: ValkeyServer, redis_url):
    with ValkeyServer({"replicaof": f"{killable_valkey.host} {killable_valkey.port}"}) as replica:
        with pytest.raises(StoreUnsafe, match="replica"):
            RedisEngine(replica.url)
        while killable_valkey.call("INFO", "replication")["connected_slaves"] == 0:
            pass
        engine = RedisEngine(killable_valkey.url)
        assert engine.best_effort
        assert {f.name: f.level for f in engine.examine()}["replicas"] == "refuse"
        engine.close()
    with_none = RedisEngine(redis_url)
    assert not with_none.best_effort
    with_none.close()


@pytest.mark.server
def test_a_master_that_was_made_a_replica_is_neither_read_nor_written(killable_valkey: ValkeyServer):
    store = GroupedStore(RedisEngine(killable_valkey.url), patience=0.05)
    at = Address("s", "claim", "k")
    store.write(Insert(at, "")).block()
    killable_valkey.call("REPLICAOF", "127.0.0.1", "1")
    for request in (store.read(at), store.write(Insert(at, "")), store.scan("claim"), store.due("claim", queues=["q"])):
        with pytest.raises(StoreUnavailable):
            request.block()
    killable_valkey.call("REPLICAOF", "NO", "ONE")
    assert store.read(at).block().record is not None
    store.close()


@pytest.mark.server
def test_a_server_that_hides_its_settings_is_opened_with_a_warning(killable_valkey: ValkeyServer):
    killable_valkey.call("ACL", "SETUSER", "joe", "on", ">hunter2", "~twiceproof:*", "+@all", "-config")
    url = killable_valkey.url.replace("redis://", "redis://joe:hunter2@")
    assert examined(url)["appendfsync"].level == "warn"
    killable_valkey.call("ACL", "SETUSER", "joe", "+config|get")
    assert examined(url)["appendfsync"].level == "ok"


@pytest.mark.server
def test_a_wrong_password_is_refused_and_not_told(killable_valkey: ValkeyServer):
    killable_valkey.call("ACL", "SETUSER", "joe", "on", ">hunter2", "~*", "+@all")
    with pytest.raises(StoreError) as error:
        RedisEngine(killable_valkey.url.replace("redis://", "redis://joe:hunter3@"))
    assert "password" in str(error.value)
    assert "hunter" not in str(error.value)


@pytest.mark.server
def test_a_user_that_may_do_too_little_is_told_what_it_needs(killable_valkey: ValkeyServer):
    killable_valkey.call("ACL", "SETUSER", "joe", "on", ">x", "~twiceproof:*", "+@all", "-zadd")
    engine = RedisEngine(killable_valkey.url.replace("redis://", "redis://joe:x@"))
    (answer,) = engine.commit([Batch([Insert(Address("s", "claim", "k"), "")], "nonce")])
    assert isinstance(answer, StoreError)
    assert "+@write" in str(answer)
    assert engine.fetch([Address("s", "claim", "k")])[0].record is None
    engine.close()


@pytest.mark.server
def test_a_change_of_the_serving_process_is_noted(killable_valkey: ValkeyServer):
    assert "the same server" in examined(killable_valkey.url)["epoch"].found
    engine = RedisEngine(killable_valkey.url)
    engine.due("claim", ["q"], 1, 1.0)
    engine.close()
    killable_valkey.restart()
    engine = RedisEngine(killable_valkey.url)
    engine.due("claim", ["q"], 1, 1.0)
    epoch = next(finding for finding in engine.examine() if finding.name == "epoch")
    assert "took over 1 times" in epoch.found
    engine.close()


@pytest.mark.parametrize("database", ["abc", "1/2", "0x", "-1"])
def test_a_database_that_is_no_number_is_refused_and_not_taken_for_another(database):
    with pytest.raises(Misuse, match="the database by its number"):
        RedisUrl.of(f"redis://127.0.0.1:6379/{database}")


@pytest.mark.parametrize(("path", "number"), [("/3", 3), ("/0", 0), ("/", 0), ("", 0)])
def test_a_database_is_named_by_its_number(path, number):
    assert RedisUrl.of(f"redis://127.0.0.1:6379{path}").settings.get("db", 0) == number


@pytest.mark.parametrize(
    "text",
    [
        "NOPERM User joe has no permissions to run the 'zadd' command",
        "ERR ACL failure in script: User joe has no permissions to run the 'zadd' command script: 14b9",
        "ERR The user executing the script can't run this command or subcommand script: 14b9",  # Redis 7.0
        "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
    ],
)
def test_a_missing_right_is_known_as_every_release_of_the_server_says_it(text):
    assert "+@write" in str(named(text))


def test_an_error_that_nobody_knows_is_not_taken_for_a_missing_right():
    assert "+@write" not in str(named("ERR The user has had enough"))
