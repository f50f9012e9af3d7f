"""Callers of a storm of duplicates: four processes, two of which await with 64 at once and two block with 8 threads."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from tests.faults.catalogue.storm_verdict import BUSY, Answers
from twiceproof import App, InProgress, NotDone, PayloadMismatch
from twiceproof.errors import ClaimError

__all__ = ["PROCESSES", "at_once", "awaited", "blocked", "failed_before", "late"]

PROCESSES = 4
COROUTINES = 64
THREADS = 8

Prepare = Callable[[int], AbstractContextManager[Callable[[Answers], object]]]


def at_once(prepare: Prepare, processes: int = PROCESSES) -> Answers:
    """Let all processes begin at once; return a count of their answers."""

    def run(process: int) -> Callable[[Child], None]:
        def main(child: Child) -> None:
            answers: Answers = Counter()
            with prepare(process) as call:
                child.tell("ready")
                child.wait_for_go()
                call(answers)
            child.tell([[*key, times] for key, times in answers.items()])

        return main

    children = [Child(run(process)) for process in range(processes)]
    for child in children:
        child.hear()
    for child in children:
        child.go()
    total: Answers = Counter()
    for child in children:
        for key, answer, times in child.hear() or []:  # empty: the process died, and its answers are missing
            total[key, answer] += times
        child.end()
    return total


def awaited(place: Place, app: App, calls: list[int], answers: Answers, process: int) -> None:
    receipts = itertools.count()

    @app.once(key="order:{order}", name="charge")
    async def charge(order: int, amount: int = 0) -> dict[str, Any]:
        receipt = {"order": order, "paid": f"a{process}-{next(receipts)}"}
        place.do(f"charge {order} {json.dumps(receipt)}")
        await asyncio.sleep(0)
        return receipt

    async def main() -> None:
        left = iter(calls)
        await asyncio.gather(*(_drain(charge, left, answers) for _ in range(COROUTINES)))

    asyncio.run(main())


async def _drain(charge: Callable[[int], Awaitable[Any]], left: Iterator[int], answers: Answers) -> None:
    for order in left:
        try:
            answers[order, json.dumps(await charge(order))] += 1
        except ClaimError as error:
            answers[order, refusal(error)] += 1


def refusal(error: ClaimError) -> str:
    """Only one is in order."""
    return BUSY if isinstance(error, InProgress) else type(error).__name__


def blocked(place: Place, app: App, calls: list[int], answers: Answers, process: int) -> None:
    receipts = itertools.count()

    @app.once(key="order:{order}", name="charge")
    def charge(order: int, amount: int = 0) -> dict[str, Any]:
        receipt = {"order": order, "paid": f"a{process}-{next(receipts)}"}
        place.do(f"charge {order} {json.dumps(receipt)}")
        return receipt

    def drain(mine: list[int], heard: Answers) -> None:
        for order in mine:
            try:
                heard[order, json.dumps(charge(order))] += 1
            except ClaimError as error:
                heard[order, refusal(error)] += 1

    parts: list[Answers] = [Counter() for _ in range(THREADS)]
    threads = [threading.Thread(target=drain, args=(calls[at::THREADS], part)) for at, part in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for part in parts:
        answers.update(part)


def failed_before(app: App, orders: Iterable[int]) -> None:
    """These failed without an effect: the next caller takes over, and only one may."""

    @app.once(key="order:{order}", name="charge")
    def charge(order: int, amount: int = 0) -> dict[str, Any]:
        raise NotDone("the other side said no")

    for order in orders:
        with contextlib.suppress(NotDone):
            charge(order)


def late(app: App, keys: int, answers: Answers) -> None:
    """Every caller repeats its call, and calls once with another payload, which is refused."""

    @app.once(key="order:{order}", name="charge")
    def charge(order: int, amount: int = 0) -> dict[str, Any]:
        return {"order": order, "paid": "too late"}

    for order in range(keys):
        answers[order, json.dumps(charge(order))] += 1
        with contextlib.suppress(PayloadMismatch):
            answers[order, f"another amount: {charge(order, 1)}"] += 1
