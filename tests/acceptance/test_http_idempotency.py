"""`Idempotency-Key` in front of real apps, in real server processes, over loopback. Killed in mid-handler, too."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.http_shops import MAKERS
from tests.acceptance.places import SqlitePlace
from tests.servers.address import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PARALLEL = 50
PATIENCE = 60.0


@dataclass
class Heard:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self
        return json.loads(self.body)


class Server:
    """A shop in a process of its own."""

    def __init__(self, name: str, directory: Path, *, bare: bool = False) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "tests.acceptance.http_shops", name, str(self.port), str(directory)]
        self.log = (directory / f"server-{self.port}.log").open("wb")
        self.process = subprocess.Popen(
            [*command, *(["bare"] if bare else [])], cwd=ROOT, stderr=self.log, stdout=self.log
        )
        wait_until(self._listens)

    def _listens(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ask(self, order: dict[str, Any], *, key: str | None = "k-1", who: str = "ann", path: str = "/pay") -> Heard:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {who}"}
            headers |= {} if key is None else {"idempotency-key": key}
            connection.request("POST", path, json.dumps(order), headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Heard(answer.status, found, answer.read())
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.log.close()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def shop(tmp_path: Path) -> SqlitePlace:
    (tmp_path / "clock").write_text("0")
    made = SqlitePlace("", tmp_path)
    made.app().close()
    return made


@pytest.fixture
def serve(shop: SqlitePlace) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(name: str, **options: Any) -> Server:
        servers.append(Server(name, shop.directory, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def at_once(*asks: Callable[[], Heard]) -> list[Heard]:
    """All of them at the same time; what each of them heard."""
    gate, heard = threading.Barrier(len(asks)), []

    def ask(one: Callable[[], Heard]) -> None:
        gate.wait()
        heard.append(one())

    threads = [threading.Thread(target=ask, args=(one,)) for one in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == len(asks)
    return heard


every = pytest.mark.parametrize("name", MAKERS)


@every
def test_of_fifty_at_once_one_pays_and_the_others_hear_what_it_heard(name, serve, shop):
    server = serve(name)
    heard = at_once(*[lambda: server.ask({"id": 7})] * PARALLEL)
    assert shop.effects() == ["pay 7"]
    assert {one.status for one in heard} <= {201, 409}
    answers = [one for one in heard if one.status == 201]
    assert len({one.body for one in answers}) == 1
    assert [one.replayed for one in answers].count(False) == 1
    for one in heard:
        if one.status == 409:
            assert one.problem()["state"] == "in progress"
            assert 1 <= int(one.headers["retry-after"]) <= 30
    later = server.ask({"id": 7}, key='"k-1"')
    assert (later.status, later.body, later.replayed) == (201, answers[0].body, True)
    assert later.headers["content-type"] == answers[0].headers["content-type"]


@every
def test_what_one_caller_heard_is_not_told_to_another_and_cookies_to_nobody(name, serve, shop):
    server = serve(name)
    first, other, again = server.ask({"id": 7}), server.ask({"id": 7}, who="bob"), server.ask({"id": 7})
    assert (first.replayed, other.replayed, again.replayed) == (False, False, True)
    assert other.body != first.body
    assert "canary" in first.headers["set-cookie"]
    assert "set-cookie" not in again.headers
    assert shop.effects() == ["pay 7", "pay 7"]
    assert server.ask({"id": 8}).status == 422
    assert server.ask({"id": 9}, key=None).status == 400
    assert len(shop.effects()) == 2


@every
def test_killed_in_mid_handler_it_is_not_paid_again_until_a_person_has_looked(name, serve, shop):
    """The process dies after it has paid and before anything is on record."""
    server = serve(name)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        server.ask({"id": 7, "die": True})
    assert server.process.wait(PATIENCE) == -signal.SIGKILL
    server = serve(name)
    assert server.ask({"id": 7, "die": True}).problem()["state"] == "in progress"
    shop.advance(31)
    told = server.ask({"id": 7, "die": True}).problem()
    assert (told["status"], told["state"]) == (409, "review")
    assert shop.effects() == ["pay 7"]
    with shop.app() as app:
        app.settle(told["claim"]["operation"], told["claim"]["key"], "happened", by="ann", result={"receipt": "R-1"})
    settled = server.ask({"id": 7, "die": True})
    assert (settled.status, json.loads(settled.body), settled.replayed) == (200, {"receipt": "R-1"}, True)
    assert shop.effects() == ["pay 7"]


@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_killed_while_it_works_it_runs_again_where_that_is_declared_safe(name, serve, shop):
    server = serve(name)
    waiting = threading.Thread(target=hang, args=(server, "/again"))
    waiting.start()
    wait_until(lambda: shop.effects() == ["pay 7"])
    server.kill()
    waiting.join()
    (shop.directory / "go").touch()
    server = serve(name)
    shop.advance(31)
    heard = server.ask({"id": 7, "slow": True}, path="/again")
    assert (heard.status, heard.replayed) == (201, False)
    assert server.ask({"id": 7, "slow": True}, path="/again").body == heard.body
    assert shop.effects() == ["pay 7", "pay 7"]


def hang(server: Server, path: str) -> None:
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        server.ask({"id": 7, "slow": True}, path=path)


@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "django-asgi", "django-wsgi"])
def test_a_client_that_hangs_up_while_it_is_worked_on_finds_the_answer_later(name, serve, shop):
    server = serve(name)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    headers = {"content-type": "application/json", "authorization": "Bearer ann", "idempotency-key": "k-1"}
    connection.request("POST", "/pay", json.dumps({"id": 7, "slow": True}), headers)
    wait_until(lambda: shop.effects() == ["pay 7"])
    connection.close()
    (shop.directory / "go").touch()
    wait_until(lambda: server.ask({"id": 7, "slow": True}).status != 409)
    heard = server.ask({"id": 7, "slow": True})
    assert (heard.status, heard.replayed) == (201, True)
    assert shop.effects() == ["pay 7"]


def test_two_server_processes_share_one_ledger(serve, shop):
    servers = [serve("fastapi"), serve("starlette")]
    heard = at_once(*[lambda n=n: servers[n % 2].ask({"id": 7}) for n in range(PARALLEL)])
    assert shop.effects() == ["pay 7"]
    assert len({one.body for one in heard if one.status == 201}) == 1
    assert servers[0].ask({"id": 7}).body == servers[1].ask({"id": 7}).body


@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_without_the_middleware_everything_happens_twice(name, serve, shop):
    """The control: these tests can fail."""
    server = serve(name, bare=True)
    heard = at_once(*[lambda: server.ask({"id": 7})] * 10)
    assert shop.effects() == ["pay 7"] * 10
    assert len({one.body for one in heard}) == 10
