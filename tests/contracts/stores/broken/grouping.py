"""Drivers and groups that mix callers up."""

import asyncio

from tests.contracts.stores.broken.catalogue import breaks, breaks_above
from twiceproof.operations import Request
from twiceproof.records import Conflict, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@breaks("batches", "concurrency")
class AnswersInTheWrongOrder(MemoryEngine):
    def commit(self, batches):
        return list(reversed(super().commit(batches)))


@breaks("batches", "concurrency")
class EverybodyGetsTheFirstAnswer(MemoryEngine):
    def commit(self, batches):
        outcomes = super().commit(batches)
        return outcomes[:1] * len(outcomes)


class _Eager(Request):
    __slots__ = ("_request",)

    def __init__(self, request):
        self._request = request

    def block(self):
        return self._request.block()


class _Unhurried(_Eager):
    """Awaits a moment, looks at the outcome of the blocking call, and calls every refusal a success."""

    async def wait(self):
        await asyncio.sleep(0)
        outcome = self._request.block()
        return Written("1", 1, outcome.now) if isinstance(outcome, Conflict) else outcome


@breaks_above("writes", "concurrency", "batches")
class AwaitingTellsSomethingElse(GroupedStore):
    """The twin for event loops was not mended when the blocking one was."""

    def write(self, *writes, **more):
        return _Unhurried(super().write(*writes, **more))


@breaks_above("lifecycle", "fences", "batches")
class WritesWhenAskedNotWhenRun(GroupedStore):
    def write(self, *writes, **more):
        outcome = super().write(*writes, **more).block()
        return _Done(outcome)


class _Done(Request):
    __slots__ = ("_outcome",)

    def __init__(self, outcome):
        self._outcome = outcome

    def block(self):
        return self._outcome

    async def wait(self):
        return self._outcome
