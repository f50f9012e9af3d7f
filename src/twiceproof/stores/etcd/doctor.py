"""What an etcd cluster can promise here: members, space, version, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import StoreError
from ..base import Disconnected, Finding, refuse_unsafe_findings
from ..rows.engine import clock_finding
from .connection import EtcdTable

__all__ = ["examine", "findings", "refuse_unsafe"]

OLDEST = (3, 4)
SKEW = 1.5  # seconds; a Date names whole ones
QUOTA = 2 * 1024**3  # etcd's own, unless it is set
NEARLY_FULL = 0.8


def refuse_unsafe(table: EtcdTable) -> None:
    refuse_unsafe_findings("etcd", _basics(table))


def examine(table: EtcdTable) -> Sequence[Finding]:
    return [
        *_basics(table),
        *findings(table.ask("cluster/member/list", {}).get("members", ()), table.ask("maintenance/status", {})),
        _encryption(table),
        _members_clocks(table),
        clock_finding(table.clock),
    ]


def _basics(table: EtcdTable) -> list[Finding]:
    return [_version(table.ask("maintenance/status", {})), _alarms(_alarms_of(table))]


def _alarms_of(table: EtcdTable) -> Any:
    try:
        return table.ask("maintenance/alarm", {"action": "GET"}).get("alarms", ())
    except StoreError:  # the user may not query this
        return ()


def findings(members: Sequence[Any], status: Any) -> list[Finding]:
    return [_members(members), _space(status)]


def _version(status: Any) -> Finding:
    found = str(status.get("version", "0"))
    if tuple(int(part) for part in found.split(".")[:2] if part.isdecimal()) < OLDEST:
        return Finding("refuse", "version", f"etcd {found}", "Upgrade to etcd 3.4 or later.")
    return Finding("ok", "version", f"etcd {found}")


def _alarms(alarms: Sequence[Any]) -> Finding:
    names = {str(alarm.get("alarm")) for alarm in alarms}
    if "CORRUPT" in names:
        return Finding("refuse", "alarm", "CORRUPT: members hold different data", "Replace the damaged member.")
    if "NOSPACE" in names:
        return Finding(
            "refuse",
            "alarm",
            "NOSPACE: no write is taken",
            "Compact and defragment the cluster, then disarm the alarm (etcdctl alarm disarm).",
        )
    return Finding("ok", "alarm", "none")


def _members(members: Sequence[Any]) -> Finding:
    count = len([member for member in members if not member.get("isLearner")])
    if count == 1:
        return Finding(
            "warn", "members", "one: if it is down, nothing works, and no other has the data", "Use three members."
        )
    if count % 2 == 0:
        return Finding("warn", "members", f"{count}: no more may fail than with {count - 1}", "Use an odd number.")
    return Finding("ok", "members", f"{count}: {count // 2} may fail")


def _space(status: Any) -> Finding:
    size, used = int(status.get("dbSize", 0)), int(status.get("dbSizeInUse", 0))
    told = f"{size / 1024**2:.0f} MiB, {used / 1024**2:.0f} MiB of it in use"
    if used > NEARLY_FULL * QUOTA:
        return Finding(
            "warn",
            "space",
            f"{told}: etcd is meant for a few GiB",
            "Shorten retention, or move the ledger to postgresql://.",
        )
    if size > 4 * max(used, 64 * 1024**2):
        return Finding(
            "warn",
            "space",
            f"{told}: old revisions fill the disk",
            "Set --auto-compaction-retention on the members, and defragment them.",
        )
    return Finding("ok", "space", told)


def _encryption(table: EtcdTable) -> Finding:
    if table.target.tls or table.target.loopback:
        return Finding("ok", "encryption", "TLS" if table.target.tls else "none, on this machine only")
    return Finding("warn", "encryption", "none: results and the password travel in the clear", "Use etcds://.")


def _members_clocks(table: EtcdTable) -> Finding:
    """Compare the members' clocks: leases are stamped by the member that answers, and after a failover judged by
    another one.
    """
    times = [skew for member in table.target.members if (skew := _ahead(table, member)) is not None]
    apart = max(times) - min(times) if times else 0.0
    if apart > SKEW:
        return Finding(
            "warn",
            "members' clocks",
            f"{apart:.1f} s apart: a lease may be judged over so much too early",
            "Run NTP on all members, and use leases that are much longer.",
        )
    return Finding("ok", "members' clocks", "in step")


def _ahead(table: EtcdTable, member: tuple[str, int]) -> float | None:
    clock = table.clock.another()
    try:
        table.ask_member(member, clock)
    except (Disconnected, StoreError):
        return None
    return -clock.ahead()
