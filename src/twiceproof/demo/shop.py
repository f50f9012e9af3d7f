"""The shop of the demo: sends the planned, signed messages to both programs, and repeats them until acknowledged."""

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

from ..effects.webhook_client import signed_headers
from .processes import report, wait_for_parent
from .scenario import SIDES, Delivery, read_plan

__all__ = ["Sender"]


TIMEOUT = 1.5  # seconds that the shop waits for a response; real senders wait five to fifteen
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
MOST_ATTEMPTS = 40
THREADS = 8  # per program


class Sender:
    """Sends messages to one program, to its ports in turn."""

    def __init__(self, side: str, ports: list[int], deliveries: list[Delivery]) -> None:
        self.side = side
        self._ports, self._processes = cycle(ports), len(ports)
        self._queue = [(delivery.at, number, 0, delivery) for number, delivery in enumerate(deliveries)]
        self._waiting = threading.Condition()
        self.open = len(deliveries)
        self.sent = self.acknowledged = self.duplicates = self.undelivered = 0

    def run(self, began: float) -> None:
        threads = [threading.Thread(target=self._work, args=(began,), daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, began: float) -> None:
        while (due := self._next(began)) is not None:
            _, number, attempts, delivery = due
            response = self._send(delivery)
            self._count(response, (number, attempts + 1, delivery), time.monotonic() - began)

    def _send(self, delivery: Delivery) -> bytes | None:
        """Send to the first process that accepts the connection."""
        for _ in range(self._processes):
            with self._waiting:
                port = next(self._ports)
            with suppress(ConnectionRefusedError):
                response = post(port, delivery)
                with self._waiting:
                    self.sent += 1
                return response
        return None

    def _next(self, began: float) -> tuple[float, int, int, Delivery] | None:
        with self._waiting:
            while self.open:
                now = time.monotonic() - began
                if self._queue and self._queue[0][0] <= now:
                    return heapq.heappop(self._queue)
                self._waiting.wait(self._queue[0][0] - now if self._queue else None)
            return None

    def _count(self, response: bytes | None, sent: tuple[int, int, Delivery], now: float) -> None:
        """Count a delivery, or queue it again if it was not acknowledged."""
        number, attempts, delivery = sent
        with self._waiting:
            if response is None and attempts < MOST_ATTEMPTS:
                pause = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
                heapq.heappush(self._queue, (now + pause, number, attempts, delivery))
            else:
                self.open -= 1
                self.acknowledged += response is not None
                self.undelivered += response is None
                self.duplicates += response is not None and json.loads(response).get("duplicate") is True
            self._waiting.notify_all()

    def counts(self) -> dict[str, int]:
        return {
            "open": self.open,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "duplicates": self.duplicates,
            "undelivered": self.undelivered,
        }


def post(port: int, delivery: Delivery) -> bytes | None:
    """Return the response; None if the message was not acknowledged. Raise `ConnectionRefusedError` if none listens."""
    body = json.dumps(delivery.data).encode()
    headers = signed_headers(delivery.event, time.time(), body, [os.environ["DEMO_SECRET"]])
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("POST", f"/hooks/{delivery.path}", body, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        body = response.read()
        return body if response.status == 200 else None
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
        report(shop={sender.side: sender.counts() for sender in senders})
        time.sleep(0 if threads[0].is_alive() else 0.2)
    report(shop={sender.side: sender.counts() for sender in senders}, finished=True)


if __name__ == "__main__":
    threading.Thread(target=main, args=(Path(sys.argv[1]), json.loads(sys.argv[2])), daemon=True).start()
    wait_for_parent()
