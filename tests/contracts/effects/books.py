"""An HTTP service as many are: invoices that can be searched or have a key, customers by our id, a shared document."""

from __future__ import annotations

from typing import Any

from twiceproof.prove.simulators.server import SimulatedAnswer, SimulatedRequest, Simulator

MISSING = SimulatedAnswer(404, {"error": "there is none"})


class BooksSimulator(Simulator):
    """`rows` is what was created; `document` has an ETag, and is written only under the one that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.document: dict[str, Any] = {"total": 0}
        self.version = 1
        self._known: dict[str, dict[str, Any]] = {}  # invoices by the key that they came with

    @property
    def etag(self) -> str:
        return f'"{self.version}"'

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        kind = request.path.split("/")[1]
        answer: SimulatedAnswer = getattr(self, f"_{kind}")(request)
        return answer

    def _invoices(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "GET":
            wanted = request.query["reference"]
            return SimulatedAnswer(200, {"items": [row for row in self.rows if row["reference"] == wanted]})
        key = request.headers.get("idempotency-key", "")
        if key in self._known:
            return SimulatedAnswer(201, self._known[key])
        self.rows.append({"id": f"inv_{len(self.rows) + 1}", **request.json})
        if key:
            self._known[key] = self.rows[-1]
        return SimulatedAnswer(201, self.rows[-1])

    def _customers(self, request: SimulatedRequest) -> SimulatedAnswer:
        number = request.path.rpartition("/")[2]
        found = [row for row in self.rows if row["id"] == number]
        if request.method == "GET":
            return SimulatedAnswer(200, found[0]) if found else MISSING
        self.rows[:] = [*(row for row in self.rows if row["id"] != number), {"id": number, **request.json}]
        return SimulatedAnswer(200, self.rows[-1])

    def _document(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "PUT":
            if request.headers.get("if-match") != self.etag:
                return SimulatedAnswer(412, {"error": "it was changed"})
            self.document, self.version = request.json, self.version + 1
        return SimulatedAnswer(200, self.document, {"ETag": self.etag})
