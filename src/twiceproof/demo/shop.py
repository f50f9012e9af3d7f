"""The shop: sends its signed messages as planned to both programs, and again until they are acknowledged."""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from pathlib import Path

from ..effects.http import signed_headers
from .processes import stay, tell
from .scenario import SIDES, Delivery, read_plan

__all__ = ["Sender"]


PATIENCE = 1.5  # seconds that the shop waits for an answer; real ones wait five to fifteen
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
MOST_TRIES = 40
LINES = 8  # messages under way at once, to each program


class Sender:
    """Sends to one program, at whichever of its ports comes next."""

    def __init__(self, side: str, ports: list[int], deliveries: list[Delivery]) -> None:
        self.side = side
        self._ports, self._places = cycle(ports), len(ports)
        self._queue = [(delivery.at, number, 0, delivery) for number, delivery in enumerate(deliveries)]
        self._waiting = threading.Condition()
        self.open = len(deliveries)
        self.sent = self.acknowledged = self.repeats = self.given_up = 0

    def run(self, began: float) -> None:
        lines = [threading.Thread(target=self._line, args=(began,), daemon=True) for _ in range(LINES)]
        for line in lines:
            line.start()
        for line in lines:
            line.join()

    def _line(self, began: float) -> None:
        while (due := self._next(began)) is not None:
            _, number, tries, delivery = due
            answer = self._send(delivery)
            self._take(answer, (number, tries + 1, delivery), time.monotonic() - began)

    def _send(self, delivery: Delivery) -> bytes | None:
        """To whichever process is there."""
        for _ in range(self._places):
            with self._waiting:
                port = next(self._ports)
            with suppress(ConnectionRefusedError):
                answer = post(port, delivery)
                with self._waiting:
                    self.sent += 1
                return answer
        return None

    def _next(self, began: float) -> tuple[float, int, int, Delivery] | None:
        with self._waiting:
            while self.open:
                now = time.monotonic() - began
                if self._queue and self._queue[0][0] <= now:
                    return heapq.heappop(self._queue)
                self._waiting.wait(self._queue[0][0] - now if self._queue else None)
            return None

    def _take(self, answer: bytes | None, sent: tuple[int, int, Delivery], now: float) -> None:
        number, tries, delivery = sent
        with self._waiting:
            if answer is None and tries < MOST_TRIES:
                pause = min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE)
                heapq.heappush(self._queue, (now + pause, number, tries, delivery))
            else:
                self.open -= 1
                self.acknowledged += answer is not None
                self.given_up += answer is None
                self.repeats += answer is not None and json.loads(answer).get("duplicate") is True
            self._waiting.notify_all()

    def count(self) -> dict[str, int]:
        return {
            "open": self.open,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "repeats": self.repeats,
            "given_up": self.given_up,
        }


def post(port: int, delivery: Delivery) -> bytes | None:
    """The answer; None: not acknowledged, for whatever reason. `ConnectionRefusedError`: nobody is there."""
    body = json.dumps(delivery.data).encode()
    headers = signed_headers(delivery.event, time.time(), body, [os.environ["DEMO_SECRET"]])
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", f"/hooks/{delivery.path}", body, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        read = answer.read()
        return read if answer.status == 200 else None
    except ConnectionRefusedError:
        raise
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def main(place: Path, ports: dict[str, list[int]]) -> None:
    plan = read_plan(place)
    senders = [Sender(side, ports[side], plan.deliveries) for side in SIDES]
    began = time.monotonic()
    threads = [threading.Thread(target=sender.run, args=(began,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.2)
        tell(shop={sender.side: sender.count() for sender in senders})
        time.sleep(0 if threads[0].is_alive() else 0.2)
    tell(shop={sender.side: sender.count() for sender in senders}, finished=True)


if __name__ == "__main__":
    threading.Thread(target=main, args=(Path(sys.argv[1]), json.loads(sys.argv[2])), daemon=True).start()
    stay()
