"""From a function call to a ClaimRequest: name, bound arguments, key, fingerprint."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import Parameter
from types import BuiltinMethodType, FrameType, FunctionType, MethodType
from typing import Any

from ..clock import Clock, Ids
from ..errors import Misuse
from ..keys import KeyMaker, UnstableKeyDetector, digest, fingerprint
from ..records import Address
from .claim import CLAIM, address_of, run_id
from .policy import Policy
from .states import ClaimRequest

__all__ = [
    "Arguments",
    "ClaimRequestFactory",
    "Link",
    "bound_otherwise",
    "operation_name",
    "place_of",
    "refuse_bare",
]


SIMPLE = (Parameter.POSITIONAL_OR_KEYWORD,)


class Arguments:
    """Binds a function's arguments; plain signatures without `inspect`, which costs more than the rest of a claim."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        self._called = str(getattr(function, "__name__", "the call"))
        parameters = self.signature.parameters
        self._names = tuple(parameters)
        self._known = frozenset(parameters)
        self._defaults = {p.name: p.default for p in parameters.values() if p.default is not Parameter.empty}
        self._simple = all(p.kind in SIMPLE for p in parameters.values())
        self._only = self._names[0] if self._simple and len(self._names) == 1 else ""

    @property
    def receiver(self) -> str | None:
        """The parameter under which a method gets its object: never part of the fingerprint."""
        first = self._names[0] if self._names else ""
        return first if first in ("self", "cls") else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._only and len(args) == 1 and not kwargs:  # what most guarded functions take: one event
            return {self._only: args[0]}
        if not self._simple or len(args) > len(self._names):
            return self._bind_slowly(args, kwargs)
        given = dict(zip(self._names, args, strict=False))
        if kwargs and not (self._known.issuperset(kwargs) and given.keys().isdisjoint(kwargs)):
            return self._bind_slowly(args, kwargs)
        bound = {**self._defaults, **given, **kwargs}
        return bound if len(bound) == len(self._names) else self._bind_slowly(args, kwargs)

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind any signature; raises a TypeError like Python's own for a call that does not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._called}: {error}") from None
        bound.apply_defaults()
        return bound.arguments


Link = str | Callable[..., str] | None


class ClaimRequestFactory:
    """Makes the claim requests of one operation from the arguments of its calls."""

    def __init__(
        self,
        function: Callable[..., Any],
        policy: Policy,
        *,
        key: str | Callable[..., str],
        owner: Ids,
        clock: Clock,
        stable: Collection[str] = (),
        link: Link = None,
        kind: str = CLAIM,
    ) -> None:
        self.policy = policy
        self._kind = kind
        self.arguments = Arguments(function)
        self._owner = owner
        self._clock = clock
        self.maker = KeyMaker(key, self.arguments.signature)
        self.stable = tuple(stable)
        self._watch = UnstableKeyDetector(policy.operation, self.maker, stable)
        self._link = KeyMaker(link, self.arguments.signature) if link else None
        self._ignore = _ignored(policy.ignore, self.arguments)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call."""
        return self.maker.make(self.arguments.bind(args, kwargs))

    def address(self, key: str, tenant: str | None = None) -> Address:
        """Return where the claim of a key is stored, for `tenant` or the one it was declared for."""
        return address_of(tenant or self.policy.tenant, self.policy.operation, key, self._kind)

    def request(self, arguments: dict[str, Any], *, tenant: str | None = None, retry: bool = False) -> ClaimRequest:
        """Return the claim request of a call. Everything that can be refused is refused here, before any write."""
        key = self.maker.make(arguments)
        if self._watch.is_on:
            self._watch.look(arguments, key, self._clock.now())
        policy = self.policy
        tenant = tenant or policy.tenant
        at = address_of(tenant, policy.operation, key, self._kind)
        return ClaimRequest(
            at=at,
            operation=policy.operation,
            key=key,
            owner=self._owner(),
            lease=policy.lease,
            tenant=tenant,
            fingerprint=fingerprint(arguments, self._ignore) if self._ignore else digest(arguments),
            run=run_id(at.space),
            link=self._link.make(arguments) if self._link else "",
            repeat=policy.repeat,
            retry=retry,
            where=policy.where,
        )


def _ignored(declared: tuple[str, ...], arguments: Arguments) -> tuple[str, ...]:
    """Return the names to ignore. A name that no argument has is refused: it would do nothing."""
    for name in declared:
        if name.partition(".")[0] not in arguments.signature.parameters:
            raise Misuse(
                f"ignore has {name!r}, but the function takes ({', '.join(arguments.signature.parameters)}); "
                "name one of them, or a field in one."
            )
    receiver = arguments.receiver
    return (*declared, receiver) if receiver else declared


LAMBDA = "<lambda>"


def operation_name(function: Callable[..., Any], given: str | None, decorator: str) -> str:
    """Return the name given, or the function's own. `@classmethod` must stand above: only it can see the class."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise Misuse(f"@app.{decorator} stands above @{kind}; write @{kind} first, and @app.{decorator} below it.")
    own = given or str(getattr(function, "__name__", ""))
    if own in ("", LAMBDA) and callable(
        function
    ):  # what cannot be called is refused by the caller, with a better message
        kind = "lambda" if own else type(function).__qualname__
        raise Misuse(f"A {kind} has no name of its own; give one: @app.{decorator}(…, name=…).")
    return own


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is written. An object has no such place."""
    named = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{named}" if named else f"{type(function).__qualname__} at {id(function):#x}"


def bound_otherwise(one: Any, other: Any) -> str:
    """Return the name of a value that two functions made by the same lines bind, each another one; "" without any.

    A module that is reloaded, and a factory that is called twice, declare the same function again. A loop over three
    banks makes three, which differ in the bank alone: under one name they would answer each other's duplicates, and a
    worker would run the last of them for the runs of all. Only values that can be compared tell: a factory that is
    called twice makes its connections anew.
    """
    return next(_differing(one, other, set()), "")


def _differing(one: Any, other: Any, seen: set[int]) -> Iterator[str]:
    one, other = _function(one), _function(other)
    if one is None or other is None or one.__code__ is not other.__code__ or id(other) in seen:
        return
    seen.add(id(other))
    theirs = _bound(other)
    for name, value in _bound(one).items():
        if name in theirs and value is not theirs[name]:
            if _function(value) is not None:
                yield from _differing(value, theirs[name], seen)
            elif _are_unequal(value, theirs[name]):
                yield name


def _function(value: Any) -> FunctionType | None:
    """Return the function below a step, a flow or another wrapper."""
    try:
        found = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else None
    except ValueError:  # a proxy, which has whatever attribute is asked for
        return None
    return found if isinstance(found, FunctionType) else None


def _bound(function: FunctionType) -> dict[str, Any]:
    """Return what a function got when it was made: its defaults, and the variables around it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    bound = dict(zip(names, defaults, strict=True)) | (function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            bound[name] = cell.cell_contents
        except ValueError:  # a variable that is set later
            continue
    return bound


def _are_unequal(one: Any, other: Any) -> bool:
    if isinstance(one, MethodType | BuiltinMethodType):  # as values they differ whenever their objects do
        return isinstance(other, MethodType) and place_of(one) != place_of(other)
    try:
        return getattr(type(one), "__eq__", None) is not object.__eq__ and bool(one != other)
    except Exception:  # noqa: BLE001 - an array, or an object with a comparison of its own
        return False


def refuse_bare(given: Any, decorator: str, needs: str = "a key", example: str = 'key="order:{order[id]}"') -> None:
    """Refuse `@app.flow` without parentheses, which takes the function for its key: it would fail only when called."""
    frame = sys._getframe(2)  # of the code with the decorator
    if isinstance(given, classmethod | staticmethod) or _stands_below(given, frame):
        raise Misuse(f"@app.{decorator} needs {needs}; write it as @app.{decorator}({example}).")


def _stands_below(given: Any, frame: FrameType) -> bool:
    """Return whether a function is defined right below the decorator: unlike a key function, it is not named yet."""
    function = inspect.unwrap(given) if callable(given) else None
    if not isinstance(function, FunctionType) or function.__name__ == LAMBDA:
        return False
    scope = frame.f_code.co_qualname
    inside = f"{scope}.<locals>." if frame.f_code.co_flags & inspect.CO_OPTIMIZED else f"{scope}."
    name = function.__name__
    made_here = function.__globals__ is frame.f_globals
    made_here = made_here and function.__qualname__ == ("" if scope == "<module>" else inside) + name
    return made_here and frame.f_locals.get(name) is not given
