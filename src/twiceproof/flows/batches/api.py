"""What an app offers for many things at once: steps beside each other, a step for every item, how far a run is."""

# A call that fits two overloads is an awaited one: those come first.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Literal, TypeVar, overload

from ...claims.claim import space_of
from ...drive import await_, block
from ...errors import Misuse
from ...keys import validate_key
from ..context import inside_flow
from ..parts import Parts
from ..step import Step
from ..tenancy import own_space
from ..unawaited import ListOrAwaitable
from .batch import Batch, ItemDone, ItemFailed, ItemKey
from .duplicates import Duplicate, compensate
from .each import CONCURRENCY, each
from .gathering import gather
from .progress import Progress, progress_of

__all__ = ["BatchApi"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
Awaited = Coroutine[Any, Any, R] | Callable[[], Coroutine[Any, Any, R]]


class BatchApi:
    """The part of an app that is about batches."""

    parts: Parts

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B]]: ...

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], c: Awaited[C], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B, C]]: ...

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], c: Awaited[C], d: Awaited[D], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B, C, D]]: ...

    @overload
    def gather(self, *calls: Awaited[R], limit: int | None = ...) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def gather(self, a: Callable[[], A], b: Callable[[], B], /, *, limit: int | None = ...) -> tuple[A, B]: ...

    @overload
    def gather(
        self, a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /, *, limit: int | None = ...
    ) -> tuple[A, B, C]: ...

    @overload
    def gather(
        self,
        a: Callable[[], A],
        b: Callable[[], B],
        c: Callable[[], C],
        d: Callable[[], D],
        /,
        *,
        limit: int | None = ...,
    ) -> tuple[A, B, C, D]: ...

    @overload
    def gather(self, *calls: Callable[[], R], limit: int | None = ...) -> list[R]: ...

    def gather(self, *calls: Any, limit: int | None = None) -> Any:
        """Steps and waits beside each other: results in order, when all have ended. At most `limit` at once.

        In a `def` flow pass functions, which run on threads: `app.gather(lambda: pay(a), lambda: ship(b))`. In an
        `async def` flow pass what you would await: `await app.gather(pay(a), ship(b))`. If one waits or fails, the
        others go on to their own ends first. The results are a list; for type checkers, as with `asyncio.gather`, a
        tuple where there are a few of different types.
        """
        session = inside_flow("app.gather")
        return session.do(gather(session, calls, limit))

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["raise"] = ...,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["collect"],
        **kwargs: Any,
    ) -> Coroutine[Any, Any, list[ItemDone[R] | ItemFailed]]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], R],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["raise"] = ...,
        **kwargs: Any,
    ) -> ListOrAwaitable[R]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], R],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["collect"],
        **kwargs: Any,
    ) -> ListOrAwaitable[ItemDone[R] | ItemFailed]: ...

    def each(
        self,
        items: Iterable[Any],
        step: Any,
        *args: Any,
        key: ItemKey = None,
        concurrency: int = CONCURRENCY,
        on_failure: Literal["raise", "collect"] = "raise",
        **kwargs: Any,
    ) -> Any:
        """`step(item, *args, **kwargs)` for every item, with state per item: only what failed is ever tried again.

        `key` tells items apart: a template over `item` (`"{item[sku]}"`) or a function of it. Returns the results in
        order. Items that fail raise `BatchFailed` when all the others are done; with `on_failure="collect"` the
        result is an `ItemDone` or `ItemFailed` for each. Awaited in an `async def` flow.
        """
        session = inside_flow("app.each")
        if on_failure not in ("raise", "collect"):
            raise Misuse(f'on_failure={on_failure!r} means nothing here; say "raise" or "collect".')
        batch = Batch(step_of(step, "app.each"), list(items), key, args, kwargs)
        work = each(session, batch, concurrency, collect=on_failure == "collect")
        return session.do(work, names=(batch.step.name,))

    def progress(self, run: str) -> Progress:
        """How far a run is, from any process: `{"reserve": {"done": 812, "failed": 3}}`."""
        return block(progress_of(self.parts.store, own_space(self.parts.tenant, run)))

    def compensate_duplicate(
        self,
        step: Any,
        *,
        result: Any,
        by: str,
        run: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        note: str = "",
        good_too: bool = False,
        undone: bool | None = None,
    ) -> Any:
        """Undo an effect that happened a second time (two invoices for one order), once, by its receipt.

        `result` is what the step would have returned for the duplicate; its undo is given that, and what it needs of
        `arguments`. The run is named by its id, or by `flow` and `key`. What the run itself recorded is refused.
        Awaited if the undo is an `async def`.
        """
        declared = step_of(step, "app.compensate_duplicate")
        duplicate = Duplicate(declared, result, arguments or {}, by, note, good_too, undone)
        drive = await_ if declared.undo is not None and declared.undo.is_async else block
        return drive(compensate(self.parts, self._space(run, flow, key), duplicate, drive))

    def _space(self, run: str | None, flow: str | None, key: str | None) -> str:
        if run is not None:
            return own_space(self.parts.tenant, run)
        if flow is None or key is None:
            raise Misuse("app.compensate_duplicate needs to know the run: give run=, or flow= and key=.")
        return space_of(self.parts.tenant, flow, validate_key(key))


def step_of(function: Any, what: str) -> Step:
    step = getattr(function, "step", None)
    if not isinstance(step, Step):
        name = getattr(function, "__name__", type(function).__name__)
        raise Misuse(f"{what} needs a step, and {name} is none; put @app.step(repeat=…) above it.")
    return step
