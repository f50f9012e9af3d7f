"""Poison at a real server: claims, results, keys, webhooks, runs and heads. It answers, and continues to answer."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import socket
from collections import Counter
from urllib.parse import quote_from_bytes

from tests.acceptance.http_server import HttpServer
from tests.faults.catalogue.poison import KEYS, REFUSED_KEYS, plain
from tests.faults.catalogue.poison_bytes import BODIES, BOMB, HEADS

__all__ = ["HttpDoor"]

JSON = {"content-type": "application/json"}
Told = tuple[int, bytes]


class HttpDoor:
    """`wrong` says what a server must not do: answer 500, half-write, forget, or stop answering."""

    def __init__(self, server: HttpServer, dice: random.Random) -> None:
        self.server = server
        self.dice = dice
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.poisoned: set[bytes] = set()  # deliveries with a valid signature that could not be read
        self._line: http.client.HTTPConnection | None = None

    def run(self, times: int) -> None:
        ways = (self.payload, self.result, self.delivery, self.start, self.key, self.packed, self.head)
        for number in range(times):
            ways[number % len(ways)](number // len(ways), number)
            if number % 50 == 49:
                self.well(number)
        self.check_letters()

    def body(self, turn: int, way: str) -> tuple[str, bytes]:
        kind = list(BODIES)[turn % len(BODIES)]
        self.tried[f"HTTP: {kind}"] += 1
        return f"{way}, {kind}", BODIES[kind](self.dice)

    def say(self, kind: str, number: int, what: str) -> None:
        self.wrong.append(plain(f"HTTP: {kind}, number {number}: {what}"))

    # -- one of each -----------------------------------------------------------------------------

    def payload(self, turn: int, number: int) -> None:
        kind, poison = self.body(turn, "payload")
        path, body = f"/v1/claims/take/order%3A{number}", b'{"payload":' + poison + b"}"
        status, told = self.ask("PUT", path, body)
        if status == 201:
            self.complete(kind, number, path, body, json.loads(told)["token"], b"1")
        elif not 400 <= status < 500:
            self.say(kind, number, f"expected 201 or a refusal, seen {status} {told!r:.120}")
        elif (left := self.ask("GET", path)[0]) != 404:
            self.say(kind, number, f"refused with {status}, and the claim is there: {left}")

    def result(self, turn: int, number: int) -> None:
        kind, poison = self.body(turn, "result")
        path = f"/v1/claims/take/order%3A{number}"
        _, told = self.ask("PUT", path, b"{}")
        self.complete(kind, number, path, b"{}", json.loads(told)["token"], poison)

    def complete(self, kind: str, number: int, path: str, body: bytes, token: str, result: bytes) -> None:
        """A refused result does not end the claim: the holder still holds it, and can send another one."""
        said = b'{"token":"%s","result":%s}' % (token.encode(), result)
        status, told = self.ask("POST", path + "/complete", said)
        if status != 200:
            if not 400 <= status < 500:
                self.say(kind, number, f"expected a refusal, seen {status} {told!r:.120}")
            status, told = self.ask("POST", path + "/complete", b'{"token":"%s"}' % token.encode())
        replays = [self.ask("PUT", path, body) for _ in range(2)]
        if status != 200 or {replay[0] for replay in replays} != {200} or replays[0] != replays[1]:
            self.say(kind, number, f"expected an end and two equal replays, seen {status}, {replays!r:.200}")

    def delivery(self, turn: int, number: int) -> None:
        kind, poison = self.body(turn, "webhook")
        body = b'{"id":' + poison + b"}"
        told = [self.ask("POST", "/hooks/post", body, {"x-secret": "s3cret", **JSON}) for _ in range(2)]
        states = [self.state(one) for one in told]
        if states[0] == states[1] == "poison":
            self.poisoned.add(body)
        elif states not in (["new", "duplicate"], ["duplicate", "duplicate"]) and not self.refused(*told):
            self.say(kind, number, f"expected once new, or twice poison or refused; seen {told!r:.200}")

    def start(self, turn: int, number: int) -> None:
        kind, poison = self.body(turn, "run")
        key = {"idempotency-key": f'"start-{number}"', **JSON}
        body = b'{"order":{"id":"r-%d","note":%s}}' % (number, poison)
        told = [self.ask("POST", "/v1/runs/sync", body, key) for _ in range(2)]
        if not self.refused(*told) and not all(status in (200, 202) for status, _ in told):
            self.say(kind, number, f"expected a run, or twice refused; seen {told!r:.200}")

    def key(self, turn: int, number: int) -> None:
        kind = list(KEYS)[turn % len(KEYS)]
        key = KEYS[kind](self.dice)
        if not isinstance(key, str) or len(key) > 9_000:
            key = "x" * 9_000
        elif kind not in REFUSED_KEYS:
            key = f"{key}{number}"[-1_024:]
        self.tried[f"HTTP keys: {kind}"] += 1
        path = "/v1/claims/take/" + quote_from_bytes(key.encode("utf-8", "surrogatepass"), safe="")
        told = [self.ask("PUT", path, b"{}") for _ in range(2)]
        expected = [201, 409] if kind not in REFUSED_KEYS else None
        if [status for status, _ in told] != expected and (expected or not self.refused(*told)):
            self.say(f"key, {kind}", number, f"expected {expected or 'a refusal'}, seen {told!r:.200}")

    def packed(self, turn: int, number: int) -> None:
        kind = ("bomb", "half of it", "another way", "plain")[turn % 4]
        self.tried[f"HTTP packed: {kind}"] += 1
        whole = gzip.compress(b'{"payload":1}')
        body = {"bomb": BOMB, "half of it": whole[: len(whole) // 2], "another way": whole, "plain": b"{}"}[kind]
        encoding = "br" if kind == "another way" else "gzip"
        path = f"/v1/claims/take/packed%3A{number}"
        told = self.ask("PUT", path, body, {"content-encoding": encoding, **JSON})
        left = self.ask("GET", path)[0]
        if not self.refused(told) or left != 404:
            self.say(f"packed, {kind}", number, f"expected a refusal and no claim, seen {told!r:.120}, {left}")

    def head(self, turn: int, number: int) -> None:
        """Any answer, or none, is fine, but not a 500."""
        kind = list(HEADS)[turn % len(HEADS)]
        self.tried[f"HTTP head: {kind}"] += 1
        with contextlib.suppress(OSError), self.server.connect() as wire:
            wire.settimeout(20)
            wire.sendall(HEADS[kind](self.dice))
            wire.shutdown(socket.SHUT_WR)
            heard = wire.recv(4_096)
            if heard.startswith(b"HTTP/1.1 5"):
                self.say(f"head, {kind}", number, f"expected to be refused or ignored, seen {heard!r:.120}")

    # -- afterwards ------------------------------------------------------------------------------

    def well(self, number: int) -> None:
        status, told = self.ask("PUT", f"/v1/claims/take/well%3A{number}", b"{}")
        if status != 201:
            self.say("wedged", number, f"a harmless claim is answered {status} {told!r:.120}")

    def check_letters(self) -> None:
        """Check that deliveries with a valid signature that could not be read are dead letters, once each."""
        from twiceproof.inbound.dead_letters import letters
        from twiceproof.operations import block
        from twiceproof.stores.open import open_store

        store = open_store(self.server.environment["TWICEPROOF_STORE"])
        kept = {letter.digest for letter in block(letters(store, "default"))}
        store.close()
        if len(kept) != len(self.poisoned):
            self.say("letters", 0, f"expected {len(self.poisoned)} deliveries kept aside, seen {len(kept)}")

    # -- talking ---------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Told:
        for _ in range(2):  # a connection that the server closed after the last answer is not an error
            line = self._line = self._line or http.client.HTTPConnection(*self.server.address, timeout=30)
            try:
                line.request(method, path, body, headers or JSON)
                answer = line.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                line.close()
                self._line = None
        return 0, b"no answer"

    def state(self, told: Told) -> str:
        return str(json.loads(told[1]).get("state", "")) if told[0] == 200 else ""

    def refused(self, *told: Told) -> bool:
        return all(400 <= status < 500 for status, _ in told)
