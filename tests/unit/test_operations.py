"""The two drivers: one operation, blocking or awaiting, with the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from twiceproof.operations import Inline, Operation, Raised, Request, Returned, UserCall, await_, block


class Asked(Request[int]):
    """Answers with a number, or raises; says which way it was asked."""

    def __init__(self, answer: int | BaseException, log: list[str]) -> None:
        self.answer, self.log = answer, log

    def block(self) -> int:
        self.log.append("block")
        return self._give()

    async def wait(self) -> int:
        self.log.append("wait")
        await asyncio.sleep(0)
        return self._give()

    def _give(self) -> int:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture(params=["block", "await_"])
def drive(request: pytest.FixtureRequest) -> Callable[[Operation[Any]], Any]:
    return block if request.param == "block" else lambda operation: asyncio.run(await_(operation))  # type: ignore[return-value]


def test_an_operation_gets_its_answers_and_returns(drive: Any) -> None:
    def add() -> Operation[int]:
        first = yield from Inline(lambda: 1)
        second = yield from Asked(2, [])
        return first + second

    assert drive(add()) == 3


def test_an_operation_that_asks_nothing_returns(drive: Any) -> None:
    def nothing() -> Operation[str]:
        return "at once"
        yield

    assert drive(nothing()) == "at once"


def test_each_driver_asks_in_its_own_way() -> None:
    log: list[str] = []

    def ask() -> Operation[int]:
        return (yield from Asked(1, log))

    block(ask())
    asyncio.run(await_(ask()))
    assert log == ["block", "wait"]


def test_a_requests_error_is_thrown_into_the_operation(drive: Any) -> None:
    def brave() -> Operation[str]:
        try:
            yield from Asked(KeyError("x"), [])
        except KeyError:
            return f"caught, and asked again: {(yield from Asked(5, []))}"
        return "unreached"

    assert drive(brave()) == "caught, and asked again: 5"


def test_an_error_that_the_operation_does_not_catch_comes_out(drive: Any) -> None:
    error = KeyError("x")

    def timid() -> Operation[int]:
        return (yield from Asked(error, []))

    with pytest.raises(KeyError) as caught:
        drive(timid())
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()])
def test_whatever_the_users_function_raises_is_a_value_to_the_operation(error: BaseException) -> None:
    def fail() -> Any:
        raise error

    async def fail_later() -> Any:
        raise error

    def call(work: Callable[[], Any]) -> Operation[Any]:
        return (yield from UserCall(work))

    assert block(call(fail)) == Raised(error)
    assert asyncio.run(await_(call(fail_later))) == Raised(error)


def test_what_the_users_function_returns_is_a_value_to_the_operation() -> None:
    async def later() -> int:
        return 5

    def call(work: Callable[[], Any]) -> Operation[Any]:
        return (yield from UserCall(work))

    assert block(call(lambda: 5)) == Returned(5)
    assert asyncio.run(await_(call(later))) == Returned(5)


def test_an_operation_cleans_up_when_its_coroutine_is_thrown_away() -> None:
    """Thrown away, a coroutine can await nothing more: it must end, and not try to go on."""
    log: list[str] = []

    def careful() -> Operation[Any]:
        try:
            return (yield from UserCall(lambda: asyncio.sleep(100)))
        finally:
            log.append("cleaned up")

    async def scene() -> None:
        coroutine = await_(careful())
        coroutine.send(None)
        coroutine.close()

    asyncio.run(scene())
    assert log == ["cleaned up"]


def test_a_request_that_implements_neither_way_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Request[int]().block()
    with pytest.raises(NotImplementedError):
        asyncio.run(Request[int]().wait())
