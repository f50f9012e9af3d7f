"""Compares the writers' own notes, kept outside of the product, with the store's answers afterwards."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from tests.acceptance.children import Child
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from tests.faults.catalogue.writers import LEASE, UNKNOWN, Work, receipt

__all__ = ["Accounts", "ask_again", "asked_again", "compared", "read_accounts"]

AT_ONCE = 64


class Accounts(Struct):
    """The notes of each key's callers, from files that the product cannot write."""

    asked: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    heard: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    fences: dict[str, list[int]] = field(default_factory=dict)
    fell: dict[str, str] = field(default_factory=dict)

    def complaints(self) -> Iterator[str]:
        """Return the errors that the notes alone show."""
        yield from (f"fell: {writer}: {why}" for writer, why in self.fell.items())
        for key, times in self.done.items():
            if times > 1:
                yield f"done twice: {key}: expected one effect, saw {times}"
        for key, said in self.heard.items():
            if said != receipt(key):
                yield f"wrong answer: {key}: expected {receipt(key)!r}, heard {said!r}"
            if not self.done[key]:
                yield f"answered without work: {key}: heard {said!r}, saw no effect"
        for key, error in self.unknown.items():
            if error != "StoreUnavailable":  # no other caller uses this key, and no lease lapses
                yield f"took itself for another: {key}: {error}"
        for key, drawn in self.fences.items():
            pairs = itertools.pairwise(drawn)
            yield from (f"fence drawn twice: {key}: {new} after {old}" for old, new in pairs if new <= old)


def read_accounts(place: Place) -> Accounts:
    found = Accounts()
    for log in sorted(place.directory.glob("writer-*.log")):
        for line in log.read_text().splitlines():
            what, key, said = line.split("\t")
            match what:
                case "asked":
                    found.asked.add(key)
                case "did":
                    found.done[key] += 1
                case "heard":
                    found.heard[key] = said
                case "unknown":
                    found.unknown[key] = said
                case "fell":
                    found.fell[key] = said
                case "drew":
                    found.fences.setdefault(key, []).append(int(said))
    return found


def ask_again(place: Place, accounts: Accounts) -> list[str]:
    """Call with every key once more, in a separate process, after all leases have lapsed."""
    pass_time(place, LEASE + 1)
    child = Child(lambda child: child.tell(asyncio.run(asked_again(place, sorted(accounts.asked)))))
    told: dict[str, Any] | None = child.hear()
    if child.end() or told is None:
        return ["the process that asked again broke off"]
    return list(compared(accounts, told["answers"], Counter(told["done"])))


async def asked_again(place: Place, keys: list[str]) -> dict[str, Any]:
    """Return the answers now, and the effects caused by asking."""
    answers: dict[str, str] = {}
    done: Counter[str] = Counter()
    left = iter(keys)

    async def ask(work: Work) -> None:
        for key in left:
            try:
                answers[key] = str(await work.of(key))
            except UNKNOWN as error:
                answers[key] = type(error).__name__

    with place.app() as app:
        work = Work(app, lambda _, key: done.update([key]), lambda *_: None)
        await asyncio.gather(*(ask(work) for _ in range(AT_ONCE)))
    return {"answers": answers, "done": done}


def compared(accounts: Accounts, answers: dict[str, str], done: Counter[str]) -> Iterator[str]:
    """Compare: a key that was answered must get the same answer without new work. Others must be done, or in review."""
    for key in sorted(accounts.asked):
        again = answers[key]
        if key in accounts.heard and again != accounts.heard[key]:
            yield f"acknowledged and lost: {key}: heard {accounts.heard[key]!r} before, {again!r} when asked again"
        elif done[key] and accounts.done[key]:
            yield f"done again: {key}: {accounts.done[key]} effects before, {done[key]} more when asked again"
        elif again not in (receipt(key), "NeedsReview"):
            yield f"neither done nor in review: {key}: {again}"
        elif again == receipt(key) and not accounts.done[key] + done[key]:
            yield f"answered without work: {key}: {again!r}, saw no effect"
