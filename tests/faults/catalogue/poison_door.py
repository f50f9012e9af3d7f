"""An entrance that receives poison: what was tried, what may be in the ledger, and what went wrong."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.acceptance.places import Place
from tests.faults.catalogue.poison import VALUES, inside, plain
from tests.faults.trial import Trial
from twiceproof import App

__all__ = ["Door", "attempt"]

ENDED = {"done", "failed", "review"}


class Door:
    """What both entrances count, and how they report errors."""

    name = ""

    def __init__(self, trial: Trial, store: str, place: Place, app: App) -> None:
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)  # each refusal is logged there too
        self.dice = trial.dice("poison", store, self.name)
        self.place = place
        self.app = app
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.written: set[str] = set()  # keys that may be in the ledger; all others must not

    def say(self, kind: str, number: object, what: str) -> None:
        self.wrong.append(plain(f"{self.name}: {kind}, number {number}: {what}"))

    def value(self, number: int) -> tuple[str, Any]:
        kind = list(VALUES)[number % len(VALUES)]
        self.tried[f"{self.name}: {kind}"] += 1
        return kind, inside(self.dice, VALUES[kind](self.dice))

    def effects(self) -> Counter[str]:
        return Counter(self.place.effects())

    def check_ledger(self, operations: set[str]) -> None:
        """Check that every claim has ended and belongs to an accepted value, and that there is nothing else."""
        for record in (*everything(self.app, "claim"), *everything(self.app, "run")):
            _, operation, key = record.at.space.split("/", 2)
            if operation in operations and f"{operation}/{key}" not in self.written:
                self.say("half-written", key[:60], f"{operation} was refused, and its claim is {record.state}")
            elif operation in operations and record.state not in ENDED:
                self.say("half-written", key[:60], f"{operation} is {record.state}, and nobody is at work")


def everything(app: App, kind: str) -> Iterator[Any]:
    after: str | None = None
    while True:
        page = app.store.scan(kind, after=after, limit=200).block()
        yield from page.records
        if (after := page.after) is None:
            return


def attempt(call: Callable[[], Any]) -> Any:
    """Return the JSON of what it returned, or the error."""
    try:
        return same_text(call())
    except Exception as error:  # noqa: BLE001 - judged by the caller
        return error


def same_text(value: Any) -> Any:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "no text"
