"""`@app.once`: a plain function whose work is claimed before it is done."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Coroutine
from types import CoroutineType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from msgspec import structs

from ..clock import Ids
from ..drive import Operation
from ..errors import Misuse, NotDone
from .asking import Asking, Link
from .guard import Guard
from .outcomes import TakeOutcome
from .results import ResultType
from .states import Ask

__all__ = ["AsyncOnceFunction", "Link", "Once", "OnceDecorator", "OnceFunction", "refuse_generators"]

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
        self.asking = Asking(function, guard.policy, key=key, owner=owner, clock=clock, stable=stable, link=link)
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

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Ask:
        return self.asking.ask(self.asking.arguments.bind(args, kwargs), retry=retry)


def refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(f"{function.__qualname__} is a generator, whose work has no single result; return a list instead.")
