"""A network path to a store or to the HTTP server, with a proxy on it and callers at its end."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from tests.acceptance.places import Place, PostgresPlace
from tests.faults.catalogue.accounts import Accounts
from tests.faults.catalogue.toxic_plan import ANSWER, arm
from tests.faults.catalogue.writers import UNKNOWN, Work, receipt
from tests.servers.proxy import FaultProxy
from twiceproof import App
from twiceproof.stores.grouped import GroupedStore

__all__ = ["HttpLane", "Lane", "StoreLane"]

ARMED = 1.0  # seconds that a fault lasts at most
BOUND = 30.0  # seconds within which every caller has an answer or an error
PATIENCES = (0.5, 3.0)  # some callers soon get an error instead of an answer, others wait until it comes
TRIES = 6


class Lane:
    """Does runs one after the other: a fault, two callers for one key, one caller for another key, and one
    afterwards.
    """

    commit = b""  # the request of which one of the first `skips` answers is lost
    skips = 2
    fresh = (0, 1)  # range of the number of new connections that may be harmed

    def __init__(self, host: str, port: int, accounts: Accounts) -> None:
        self.proxy = FaultProxy(host, port).start()
        self.accounts = accounts
        self.wrong: list[str] = []
        self._mutex = threading.Lock()

    def run(self, toxic: str, name: str, dice: random.Random) -> bool:
        """Run it; return whether the fault had an effect."""
        return asyncio.run(self._run(toxic, name, dice))

    async def _run(self, toxic: str, name: str, dice: random.Random) -> bool:
        self._note("asked", f"once:{name}:warm")
        await self._hear(f"once:{name}:warm", "a")  # connections are open now
        bites = arm(self.proxy, toxic, dice, dice.randrange(*self.fresh), self.commit, self.skips)
        shared = [self._ask(f"once:{name}:shared", who) for who in "ab"]
        tasks = [asyncio.ensure_future(one) for one in (*shared, self._ask(f"flow:{name}:alone", "a"))]
        await asyncio.wait(tasks, timeout=ARMED)
        bit = bites() > 0
        self.proxy.disarm()
        _, hung = await asyncio.wait(tasks, timeout=BOUND)
        if hung:
            self.wrong.append(f"{name}: no answer and no error for {BOUND:.0f} s after the fault was over")
            return bit
        self._judge(name, [task.result() for task in tasks])
        await self._serve_again(name)
        return bit

    async def _serve_again(self, name: str) -> None:
        for nth in range(TRIES):  # a connection that was being made may still have to time out
            if not await self._ask(f"once:{name}:after {nth}", "a"):
                return
        self.wrong.append(f"{name}: does not serve again after the fault was over")

    def _judge(self, name: str, errors: list[str]) -> None:
        first, second, alone = errors
        for error in (first, second):
            if error and (first == second or error != "InProgress"):  # only one of two finds the other working
                self._note("unknown", f"once:{name}:shared", error)
        if alone:
            self._note("unknown", f"flow:{name}:alone", alone)

    async def _ask(self, key: str, who: str) -> str:
        """Call, and return the name of the error, if there was one."""
        self._note("asked", key)
        return await self._hear(key, who)

    async def _hear(self, key: str, who: str) -> str:
        raise NotImplementedError

    def _note(self, what: str, key: str, said: str = "") -> None:
        with self._mutex:
            match what:
                case "asked":
                    self.accounts.asked.add(key)
                case "did":
                    self.accounts.done[key] += 1
                case "heard":
                    self.accounts.heard[key] = said
                case "unknown":
                    self.accounts.unknown[key] = said

    def close(self) -> None:
        self.proxy.close()


class StoreLane(Lane):
    """The product's own connections to PostgreSQL or Valkey."""

    fresh = (-2, 2)

    def __init__(
        self, place: Place, accounts: Accounts, nth: int = 0, store: type[GroupedStore] = GroupedStore
    ) -> None:
        parts = urlsplit(place.url)
        super().__init__(str(parts.hostname), int(parts.port or 0), accounts)
        self.commit = b"twiceproof_" if isinstance(place, PostgresPlace) else b"EVALSHA"
        engine = type(place)(self.proxy.url(place.url), place.directory).engine()
        self._app = App(store(engine, patience=PATIENCES[nth % 2]), best_effort=True)
        self._work = Work(self._app, self._did, lambda *_: None)

    def _did(self, _: str, key: str) -> None:
        self._note("did", key)

    async def _hear(self, key: str, who: str) -> str:
        try:
            self._note("heard", key, str(await self._work.of(key)))
        except UNKNOWN as error:
            return type(error).__name__
        return ""

    def close(self) -> None:
        self._app.close()
        super().close()


class HttpLane(Lane):
    """A caller of the claim service: claims, works, completes; repeats a request that was not answered."""

    fresh = (2, 5)
    commit = b"/v1/claims/"

    def __init__(self, host: str, port: int, accounts: Accounts, *, known: bool = True) -> None:
        super().__init__(host, port, accounts)
        self._known = known  # whether a caller identifies itself, so that the service can recognise it
        if not known:  # the claim that is certainly granted: a lost refusal would have no effect
            self.commit, self.skips = b"PUT /v1/claims/network/flow", 1

    async def _hear(self, key: str, who: str) -> str:
        return await asyncio.to_thread(self._carry_out, key, who)

    def _carry_out(self, key: str, who: str) -> str:
        path = f"/v1/claims/network/{quote(key, safe='')}"
        known = {"request_id": _request_id(key, who)} if self._known else {}
        body = {"payload": {"key": key}, "lease": "10m", **known}
        status, told = self._insist("PUT", path, body)
        if status == 201:
            self._note("did", key)
            result = receipt(key)
            status, told = self._insist("POST", f"{path}/complete", {"token": told["token"], "result": result})
            told = {"result": result} if status == 200 else told
        if status == 200:
            self._note("heard", key, str(told["result"]))
            return ""
        if not status:
            return "StoreUnavailable"
        problem = told.get("type", "").rpartition(":")[2]
        return {"in-progress": "InProgress"}.get(problem, f"{status} {problem}")

    def _insist(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the first answer; 0 if none came after all tries."""
        for _ in range(TRIES):
            connection = http.client.HTTPConnection(self.proxy.host, self.proxy.port, timeout=ANSWER)
            try:
                connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                continue  # unknown: the request may have arrived
            finally:
                connection.close()
            if answer.status < 500:
                return answer.status, json.loads(text)
        return 0, {}


def _request_id(key: str, who: str) -> str:
    """Return a caller's own id, which is the same whenever the trial is repeated with its seed."""
    return str(UUID(bytes=sha256(f"{key} {who}".encode()).digest()[:16], version=4))
