"""@app.once, guarded methods, with app.claim(…)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from types import CoroutineType, FunctionType, MethodType, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ..clock import Ids
from ..errors import Misuse, NotDone
from ..operations import Operation, Raised, Returned, StopIterationCarrier, await_, block
from .claim import TakeOutcome
from .error_messages import refuse_other_payload
from .guard import Guard, PriorResult
from .held_claim import ClaimScope, enclosing_claim
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
    "refuse_generators",
]


def _plain() -> object:
    """The function of an inline claim, which declares no result type: results come back as plain JSON."""


class ClaimBlock:
    """`with app.claim(…)`: `held` says whether the work is to be done here; `result` is recorded at the end."""

    def __init__(self, guard: Guard, request: ClaimRequest) -> None:
        self._guard = guard
        self._request = request
        self._results = ResultType(_plain, request.operation)
        self._scope: ClaimScope | None = None
        self._entered = False
        self._nested = False
        self.result: Any = None

    @property
    def held(self) -> bool:
        """Whether the work of this block is to be done here."""
        return self._scope is not None or self._nested

    @property
    def key(self) -> str:
        """The key, in Unicode's normal form."""
        return self._request.key

    @property
    def run(self) -> str:
        """The id under which the claim is found in lists."""
        return self._request.run

    @property
    def lost(self) -> bool:
        """Whether the claim may have been taken over: stop before the next effect.

        True when a heartbeat has found so, and when the lease has run out without a successful heartbeat.
        """
        if self._scope is None:
            return False
        hold = self._scope.hold
        return hold.lost is not None or (hold.active and self._guard.claims.clock.monotonic() >= hold.held.deadline)

    @property
    def attempt(self) -> int:
        """The attempt number; 0 if the claim is not held here."""
        return self._scope.hold.held.attempt if self._scope else 0

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
            if self._scope is not None:
                self._scope.end()
            return
        await await_(self._leave(error))

    def _enter(self) -> Operation[ClaimBlock]:
        if self._entered:
            raise Misuse("A claim is entered once; make a new one with app.claim(…).")
        self._entered = True
        outer = enclosing_claim(self._request.at.space, self._guard.claims.store)
        if outer is not None and not self._request.reentrant:  # part of the work around it, which records the result
            refuse_other_payload(outer.request, self._request)
            self._nested = True
            return self
        self._results.prepare()
        entered = yield from self._guard.enter(self._request, self._results)
        if isinstance(entered, PriorResult):
            self.result = entered.value
            return self
        yield from entered.begin()
        self._scope = entered
        return self

    def _leave(self, error: BaseException | None) -> Operation[None]:
        scope = self._scope
        if scope is None:
            return
        scope.end()
        if error is None:
            self.result = yield from self._guard.leave(scope, Returned(self.result), self._results)
            return
        try:
            yield from self._guard.leave(scope, Raised(error), self._results)
        except StopIterationCarrier:  # the block's own error goes on by itself
            return
        except BaseException as same:
            if same is not error:
                raise


class GuardedMethod:
    """A guarded method in its class. Through an object it is a bound method, with `.key` and the like bound too."""

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


def _copied(function: FunctionType) -> FunctionType:
    """Return a copy of a function: attributes of a method are those of its function, and each object needs its own."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function, updated=("__dict__",))  # type: ignore[return-value]


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OnceFunction(Protocol[P, R_co]):
    """The type of a function under `@app.once`."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> TakeOutcome | None:
        """Return what the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again what failed for good."""


class AsyncOnceFunction(Protocol[P, R_co]):
    """The type of an `async def` under `@app.once`: all but `key` is awaited."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TakeOutcome | None]:
        """Return what the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run again what failed for good."""


class OnceDecorator(Protocol):
    """The type of `@app.once(…)`: it takes `def` and `async def` alike."""

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

    def call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, tenant: str | None = None, retry: bool = False
    ) -> Operation[Any]:
        """Call the function under its claim, for `tenant` or the one it was declared for.

        `retry`: run again what has failed for good.
        """
        request = self.asking.request(self.asking.arguments.bind(args, kwargs), tenant=tenant, retry=retry)
        return self.guard.run(request, lambda: self._work(args, kwargs), self._results)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self.function(*args, **kwargs)
        if type(value) is CoroutineType and not self._awaited:
            value.close()  # work that has not begun: recorded as done, it would be lost
            raise NotDone(f"{self.policy.operation} is a def that returns a coroutine; guard an `async def` instead.")
        return value

    def look(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, tenant: str | None = None
    ) -> Operation[TakeOutcome | None]:
        """Return what the claim of these arguments is now."""
        return self.guard.claims.look(self.asking.address(self.key(args, kwargs), tenant))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.asking.key(args, kwargs)

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimRequest:
        """Return the claim request of a call, for the tenant it was declared for."""
        return self.asking.request(self.asking.arguments.bind(args, kwargs))


def refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(f"{function.__qualname__} is a generator, whose work has no single result; return a list instead.")
