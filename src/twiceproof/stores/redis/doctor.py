"""What a Redis server can promise here: persistence, eviction, replicas, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...errors import Misuse
from ..base import Finding, refuse_unsafe_findings
from .cluster import RedisCluster
from .codec import Meta
from .connection import RedisServer, facts_of, understood
from .url import RedisUrl

__all__ = ["RedisFacts", "examine", "examine_servers", "findings", "is_best_effort", "refuse_unsafe", "survey"]


OLDEST = (6, 2)
NEARLY_FULL = 0.9
SETTINGS = ("appendfsync", "min-replicas-to-write")


class RedisFacts(Struct, frozen=True):
    """What one server says of itself. A setting is missing where CONFIG GET is forbidden."""

    name: str
    info: dict[str, str]
    settings: dict[str, str]

    def number(self, name: str) -> int:
        text = self.info.get(name, "0")
        return int(text) if text.isdecimal() else 0


def survey(nodes: RedisCluster) -> list[RedisFacts]:
    """Every server that serves something. Asked when the store is opened, and by `doctor`."""
    return [_survey(nodes, node) for node in _reached(nodes)]


def _reached(nodes: RedisCluster) -> list[RedisServer]:
    try:
        return nodes.all()
    except Exception as error:
        if "cluster support disabled" not in str(error):
            raise
        raise Misuse("This Redis server is not part of a cluster; write redis:// in the store's URL.") from error


def _survey(nodes: RedisCluster, node: RedisServer) -> RedisFacts:
    info, *settings = nodes.run(node, ("INFO",), *(("CONFIG", "GET", name) for name in SETTINGS))
    if isinstance(info, Exception):
        raise understood(info)
    return RedisFacts(node.name, facts_of(info), dict(_settings(settings)))


def _settings(replies: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for name, reply in zip(SETTINGS, replies, strict=True):
        if isinstance(reply, list) and len(reply) == 2:
            yield name, reply[1].decode()


def is_best_effort(target: RedisUrl, facts: Sequence[RedisFacts]) -> bool:
    """A failover can lose acknowledged writes; so can a server that keeps nothing on disk."""
    return not target.durable or target.cluster or any(fact.number("connected_slaves") for fact in facts)


def refuse_unsafe(target: RedisUrl, facts: Sequence[RedisFacts]) -> None:
    if not target.cluster and facts[0].info.get("cluster_enabled") == "1":
        raise Misuse("This Redis server is part of a cluster; write redis+cluster:// in the store's URL.")
    refuse_unsafe_findings(
        "Redis",
        (
            finding
            for fact in facts
            for finding in (_version(fact), _persistence(target, fact), _eviction(target, fact))
        ),
    )


def examine(nodes: RedisCluster, meta: Meta) -> list[Finding]:
    facts = survey(nodes)
    return [
        *examine_servers(nodes.target, facts),
        _lanes(nodes.target, meta),
        _epoch(nodes, best_effort=is_best_effort(nodes.target, facts)),
    ]


def examine_servers(target: RedisUrl, facts: Sequence[RedisFacts]) -> list[Finding]:
    """What can be seen without a ledger."""
    return [*(finding for fact in facts for finding in findings(target, fact)), _tls(target)]


def findings(target: RedisUrl, facts: RedisFacts) -> list[Finding]:
    return [
        _version(facts),
        _persistence(target, facts),
        _sync(facts),
        _eviction(target, facts),
        _replicas(target, facts),
        _memory(facts),
        _last_write(facts),
    ]


def _version(facts: RedisFacts) -> Finding:
    found = facts.info.get("redis_version", "0")
    told = f"Valkey {facts.info['valkey_version']}" if "valkey_version" in facts.info else f"Redis {found}"
    if tuple(int(part) for part in found.split(".")[:2] if part.isdecimal()) < OLDEST:
        return Finding("refuse", "version", told, "Upgrade to Redis 6.2 or later, or to Valkey.")
    return Finding("ok", "version", told)


def _persistence(target: RedisUrl, facts: RedisFacts) -> Finding:
    if facts.info.get("aof_enabled") == "1":
        return Finding("ok", "persistence", "append-only file")
    return Finding(
        "refuse" if target.durable else "warn",
        "persistence",
        "no append-only file: when the server dies, acknowledged writes are gone",
        "Set appendonly yes and appendfsync always on the server; or, if it may forget, add ?durability=cache.",
    )


def _sync(facts: RedisFacts) -> Finding:
    found = facts.settings.get("appendfsync")
    if found is None:
        return Finding(
            "warn",
            "appendfsync",
            "cannot be seen: CONFIG GET is forbidden or renamed on this server",
            "Ask its keeper for appendfsync always, and for the right to +config|get.",
        )
    if found == "always":
        return Finding("ok", "appendfsync", "always: acknowledged writes survive a power cut")
    lost = "the last second" if found == "everysec" else "up to half a minute"
    return Finding(
        "warn",
        "appendfsync",
        f"{found}: acknowledged writes survive a crash of the server; a power cut loses {lost}",
        "Set appendfsync always: with group commit it costs little.",
    )


def _eviction(target: RedisUrl, facts: RedisFacts) -> Finding:
    found = facts.info.get("maxmemory_policy", "unknown")
    if found == "noeviction":
        return Finding("ok", "maxmemory-policy", found)
    return Finding(
        "refuse" if target.durable else "warn",
        "maxmemory-policy",
        f"{found}: when memory is short the server throws records away",
        "Set maxmemory-policy noeviction.",
    )


def _replicas(target: RedisUrl, facts: RedisFacts) -> Finding:
    count = facts.number("connected_slaves")
    if not count and not target.cluster:
        return Finding("ok", "replicas", "none, so no failover can lose writes")
    told = f"{'cluster, ' if target.cluster else ''}{count} replicas: best effort, a failover can lose writes"
    if count and target.durable and facts.settings.get("min-replicas-to-write", "0") == "0":
        return Finding(
            "refuse",
            "replicas",
            f"{told}, and a master cut off from its replicas goes on taking them",
            "Set min-replicas-to-write 1 on the server; or, if writes may be lost, add ?durability=cache.",
        )
    return Finding("warn", "replicas", told, "Use postgresql:// for what must never be lost.")


def _memory(facts: RedisFacts) -> Finding:
    most, used = facts.number("maxmemory"), facts.number("used_memory")
    told = f"{used / 1024**2:.0f} MiB of {f'{most / 1024**2:.0f} MiB' if most else 'no limit'}"
    if most and used > NEARLY_FULL * most:
        return Finding("warn", "memory", f"{told}: nearly full", "Raise maxmemory or purge old records.")
    return Finding("ok", "memory", told)


def _last_write(facts: RedisFacts) -> Finding:
    found = facts.info.get("aof_last_write_status", "ok")
    if found != "ok":
        return Finding("refuse", "disk", f"the last write to disk said {found}", "Free some space on the server.")
    return Finding("ok", "disk", "the last write to disk went well")


def _tls(target: RedisUrl) -> Finding:
    if target.tls or target.loopback:
        return Finding("ok", "encryption", "TLS" if target.tls else "none, on this machine only")
    return Finding("warn", "encryption", "none: results and the password travel in the clear", "Use rediss://.")


def _lanes(target: RedisUrl, meta: Meta) -> Finding:
    if target.lanes == meta.lanes:
        return Finding("ok", "lanes", str(meta.lanes))
    return Finding(
        "ok",
        "lanes",
        f"{meta.lanes}, as the store was created, not {target.lanes}",
        "The number cannot be changed; leave lanes= out of the URL.",
    )


def _epoch(nodes: RedisCluster, *, best_effort: bool) -> Finding:
    lane = nodes.lanes[0]
    (text,) = nodes.run(nodes.node_of(lane.slot), ("HGET", f"{lane.prefix}:epoch", "changes"))
    if isinstance(text, Exception):
        raise understood(text)
    if text is None:
        return Finding("ok", "epoch", "the same server process since the store was created")
    return Finding(
        "warn" if best_effort else "ok",
        "epoch",
        f"another server process took over {text.decode()} times (restart, failover or restored files); fences skipped "
        "ahead, and none is drawn twice",
        "Settle what was under way then: its last writes may be lost." if best_effort else "",
    )
