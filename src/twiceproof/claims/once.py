"""@app.once, guarded methods, with app.claim(…)."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from types import CoroutineType, FunctionType, MethodType, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from msgspec import structs

from ..clock import Ids
from ..errors import Misuse, NotDone
from ..operations import Operation, Raised, Returned, StopIterationCarrier, await_, block
from .claim import TakeOutcome
from .error_messages import refuse_other_payload
from .guard import Guard, PriorResult
from .held_claim import HeldClaim, enclosing_claim
from .request import ClaimRequestFactory, Link
from .results import ResultType
from .states import ClaimRequest

__all__ = [
    "AsyncOnceFunction",
    "ClaimBlock",
    "GuardedMethod",
    "Link",
    "Once",
    "OnceDecorator",
    "OnceFunction",
    "is_method",
    "refuse_generators",
]


def _plain() -> object:
    """An inline claim has nowhere to declare a result type: what was stored comes back as plain JSON."""


class ClaimBlock:
    """Inside it, `held` says whether the work is ours. What is assigned to `result` is recorded at the end."""

    def __init__(self, guard: Guard, ask: ClaimRequest) -> None:
        self._guard = guard
        self._ask = ask
        self._results = ResultType(_plain, ask.operation)
        self._hold: HeldClaim | None = None
        self._entered = False
        self._nested = False
        self.result: Any = None

    @property
    def held(self) -> bool:
        return self._hold is not None or self._nested

    @property
    def key(self) -> str:
        return self._ask.key

    @property
    def run(self) -> str:
        return self._ask.run

    @property
    def lost(self) -> bool:
        """Whether the claim may no longer be ours: time to stop before the next effect.

        A heartbeat has found so, or its time is over and no heartbeat came through: nobody could say so then.
        """
        hold = self._hold
        if hold is None or hold.lost is not None:
            return hold is not None
        return hold.active and self._guard.claims.clock.monotonic() >= hold.held.deadline

    @property
    def attempt(self) -> int:
        return self._hold.held.attempt if self._hold else 0

    def __enter__(self) -> ClaimBlock:
        return block(self._enter())

    async def __aenter__(self) -> ClaimBlock:
        return await await_(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self._leave(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):  # the coroutine is being thrown away and cannot wait: the lease lapses
            if self._hold is not None:
                self._guard.end(self._hold)
            return
        await await_(self._leave(error))

    def _enter(self) -> Operation[ClaimBlock]:
        if self._entered:
            raise Misuse("A claim is entered once; ask for a new one with app.claim(…).")
        self._entered = True
        outer = enclosing_claim(self._ask.at.space, self._guard.claims.store)
        if outer is not None and not self._ask.reentrant:  # part of the work around it, which records the result
            refuse_other_payload(outer.ask, self._ask)
            self._nested = True
            return self
        self._results.prepare()
        taken = yield from self._guard.enter(self._ask, self._results)
        if isinstance(taken, PriorResult):
            self.result = taken.value
            return self
        try:
            self._guard.begin(taken)
        except BaseException:
            yield from self._guard.claims.release(taken.held)
            raise
        self._hold = taken
        return self

    def _leave(self, error: BaseException | None) -> Operation[None]:
        if self._hold is None:
            return
        self._guard.end(self._hold)
        if error is None:
            self.result = yield from self._guard.leave(self._hold, Returned(self.result), self._results)
            return
        try:
            yield from self._guard.leave(self._hold, Raised(error), self._results)
        except StopIterationCarrier:  # the block's own error goes on by itself
            return
        except BaseException as same:
            if same is not error:
                raise


class GuardedMethod:
    """What stands in the class. An object's own is a real bound method, whose extras know their object too."""

    def __init__(self, function: FunctionType, extras: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._extras = extras
        if inspect.iscoroutinefunction(function) and hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)  # for decorators above this one (Python 3.12)

    def __get__(self, receiver: Any, owner: type | None = None) -> Any:
        if receiver is None:
            return self._function
        bound = _copied(self._function)
        for name in self._extras:
            setattr(bound, name, functools.partial(getattr(self._function, name), receiver))
        return MethodType(bound, receiver)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def is_method(function: Callable[..., Any], receiver: str | None) -> bool:
    """Whether it was written in the body of a class: only there, `self` is anybody's object."""
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    return receiver is not None and bool(scope) and not scope.endswith("<locals>")


def _copied(function: FunctionType) -> FunctionType:
    """A method's attributes are those of its function: each object's method has one of its own."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function, updated=("__dict__",))  # type: ignore[return-value]


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OnceFunction(Protocol[P, R_co]):
    """What `@app.once` leaves in place of a function."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> TakeOutcome | None:
        """What the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again what failed for good: the explicit word that a failure without a verdict needs."""


class AsyncOnceFunction(Protocol[P, R_co]):
    """The same of an `async def`: all but `key` is awaited."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TakeOutcome | None]:
        """What the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run again what failed for good: the explicit word that a failure without a verdict needs."""


class OnceDecorator(Protocol):
    """What `@app.once(…)` is: it takes `def` and `async def` alike."""

    @overload  # the first that fits counts
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncOnceFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> OnceFunction[P, R]: ...


class Once:
    """One guarded function."""

    def __init__(
        self,
        function: Callable[..., Any],
        guard: Guard,
        *,
        key: str | Callable[..., str],
        owner: Ids,
        stable: Collection[str] = (),
        link: Link = None,
    ) -> None:
        refuse_generators(function)
        self.function = function
        self.guard = guard
        self.policy = guard.policy
        clock = guard.claims.clock
        self.asking = ClaimRequestFactory(
            function, guard.policy, key=key, owner=owner, clock=clock, stable=stable, link=link
        )
        self._results = ResultType(function, self.policy.operation)
        self._awaited = inspect.iscoroutinefunction(function)

    def of(self, tenant: str) -> Once:
        """The same function for another tenant: its claims are apart."""
        if tenant == self.policy.tenant:
            return self
        view = copy.copy(self)
        view.policy = structs.replace(self.policy, tenant=tenant)
        view.guard = self.guard.of(view.policy)
        view.asking = self.asking.of(view.policy)
        return view

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
        ask = self.ask(args, kwargs, retry=retry)
        return self.guard.run(ask, lambda: self._work(args, kwargs), self._results)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self.function(*args, **kwargs)
        if type(value) is CoroutineType and not self._awaited:
            value.close()  # work that has not begun: recorded as done, it would be lost
            raise NotDone(f"{self.policy.operation} is a def that returns a coroutine; guard an `async def` instead.")
        return value

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[TakeOutcome | None]:
        """What the claim of these arguments is now."""
        return self.guard.claims.look(self.asking.address(self.key(args, kwargs)))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.asking.key(args, kwargs)

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> ClaimRequest:
        return self.asking.ask(self.asking.arguments.bind(args, kwargs), retry=retry)


def refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(f"{function.__qualname__} is a generator, whose work has no single result; return a list instead.")
