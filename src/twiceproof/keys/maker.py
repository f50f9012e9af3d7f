"""Makes keys from a call's arguments (`key=`), and from parts (`composite`, `stage`, `windowed`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature
from typing import Any

from ..errors import KeyRefused, Misuse
from .canonical import digest
from .duration import seconds
from .key import Template, TemplateField, escape, escapes, is_blank, part_text, validate_key

__all__ = ["KeyMaker", "composite", "stage", "windowed"]


_TABLE = escapes(":")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def composite(*parts: Any) -> str:
    """Join `parts` to a key: `composite("shop", "order", 10492)` is `shop:order:10492`. `:` and `%` are encoded."""
    if not parts:
        raise KeyRefused("the key has no parts; write composite('shop', 'order', order_id)")
    return validate_key(":".join(_part(part, f"part {at}") for at, part in enumerate(parts, 1)))


def stage(key: str, name: Any) -> str:
    """Return the key of the stage `name` in the life of a thing: `stage("shop:order:10492", "paid")`."""
    return validate_key(f"{validate_key(key)}:{_part(name, 'the stage')}")


def windowed(entity: Any, event: str, *, at: datetime, window: str | float | timedelta = "10m") -> str:
    """Return a key where there is no id: all such events of `entity` within one window of time are one.

    Windows are counted in UTC from 1970, so two events a second apart may fall on either side of an edge:
    where that matters, take a natural key. `at` is the event's own time, never the time of the attempt.
    """
    if entity is None or (isinstance(entity, str) and is_blank(entity)):
        raise KeyRefused("the entity is missing, so all entities would share this key; name it by its id")
    if at.utcoffset() is None:
        raise KeyRefused(f"at={at} has no time zone, so its window is unclear; give it tzinfo=UTC or another")
    ticks = round(seconds(window, name="window") * 1_000_000)
    if ticks < 1:
        raise KeyRefused("the window is shorter than a microsecond; use one as long as a retry may take")
    number = ((at - _EPOCH) // _TICK) // ticks
    return validate_key(f"{_part(event, 'event')}:{digest([entity, event, ticks, number])}")


def _part(value: Any, name: str) -> str:
    return escape(part_text(value, name), _TABLE)


_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

Make = Callable[[Mapping[str, Any]], str]


class KeyMaker:
    """Makes the key of each call of one operation.

    `make(arguments)` returns the key for a call's arguments, by name, defaults applied, or raises KeyRefused. `fields`
    are the parts of the arguments that a template reads, `takes` the arguments that a key function takes.
    """

    def __init__(self, key: str | Callable[..., str], function: Callable[..., Any] | Signature) -> None:
        signature = function if isinstance(function, Signature) else inspect.signature(function)
        self.make: Make
        self.fields: tuple[TemplateField, ...] = ()
        self.takes: tuple[str, ...] = ()
        self.text = key if isinstance(key, str) else f"{getattr(key, '__qualname__', 'a function')}(…)"  # for people
        self.function = None if isinstance(key, str) else key
        self.is_function = self.function is not None
        self.template: Template | None = None
        if isinstance(key, str):
            template = self.template = _checked_template(Template(key), signature)
            self.fields, self.make = template.fields, template.make
        else:
            self.takes, self.make = _takes(key, signature), _from_function(key, signature)


def _checked_template(template: Template, signature: Signature) -> Template:
    unknown = sorted(template.names - signature.parameters.keys())
    if unknown:
        raise Misuse(
            f"the key {template.text!r} uses {{{unknown[0]}}}, but the function takes "
            f"({_listed(signature)}); use one of its parameters{_kwargs_hint(signature, unknown[0])}"
        )
    return template


def _kwargs_hint(signature: Signature, name: str) -> str:
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            return f", or {{{parameter.name}[{name}]}}"
    return ""


def _listed(signature: Signature) -> str:
    return ", ".join(signature.parameters)


def _from_function(key: Any, signature: Signature) -> Make:
    if not callable(key):
        raise Misuse(f'key={key!r} is neither text nor a function; write key="order:{{order[id]}}"')
    if inspect.iscoroutinefunction(key):
        raise Misuse(f"the key function {_name(key)} is async; a key must be had without waiting: make it a def")
    call = _call(key, signature)
    name = _name(key)
    return lambda arguments: validate_key(_text(call(arguments), name))


def _text(made: Any, name: str) -> str:
    if isinstance(made, str):
        return made
    if inspect.iscoroutine(made):
        made.close()  # or Python complains later, elsewhere, that it was never awaited
    what = "None" if made is None else f"a {type(made).__qualname__}"
    raise KeyRefused(
        f"the key function {name} gave {what}, not text; "
        'return text that names the event, such as f"order:{order_id}"'
    )


def _call(key: Callable[..., Any], signature: Signature) -> Callable[[Mapping[str, Any]], Any]:
    try:
        wanted = inspect.signature(key)
    except (ValueError, TypeError):  # some functions written in C have none
        return _by_place(key, signature)
    names = _matching(wanted, signature)
    if names is None:
        _check_fit(key, wanted, signature)
        return _by_place(key, signature)
    return lambda arguments: key(**{name: arguments[name] for name in names if name in arguments})


def _takes(key: Any, signature: Signature) -> tuple[str, ...]:
    """Return the arguments that a key function names; none for one with `*args` or `**kwargs`."""
    try:
        wanted = inspect.signature(key)
    except (ValueError, TypeError):
        return ()
    kinds = {parameter.kind for parameter in wanted.parameters.values()}
    if not kinds.isdisjoint((Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)):
        return ()
    names = _matching(wanted, signature)
    by_place = (p.name for p in signature.parameters.values() if p.kind in _BY_PLACE)
    return tuple(by_place if names is None else names)


def _matching(wanted: Signature, signature: Signature) -> list[str] | None:
    """Return the parameters that the key function takes by name, or None if it uses other names."""
    parameters = wanted.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    if Parameter.POSITIONAL_ONLY in kinds or Parameter.VAR_POSITIONAL in kinds:
        return None
    if Parameter.VAR_KEYWORD in kinds:
        return list(signature.parameters)
    required = [p.name for p in parameters if p.default is Parameter.empty]
    if not signature.parameters.keys() >= set(required):
        return None
    return [p.name for p in parameters if p.kind in _BY_NAME and p.name in signature.parameters]


def _by_place(key: Callable[..., Any], signature: Signature) -> Callable[[Mapping[str, Any]], Any]:
    names = [p.name for p in signature.parameters.values() if p.kind in _BY_PLACE]
    rest = [p.name for p in signature.parameters.values() if p.kind is Parameter.VAR_POSITIONAL]

    def call(arguments: Mapping[str, Any]) -> Any:
        more = arguments.get(rest[0], ()) if rest else ()
        return key(*(arguments[name] for name in names), *more)

    return call


def _check_fit(key: Any, wanted: Signature, signature: Signature) -> None:
    """Refuse, at declaration, a key function whose parameters do not fit."""
    parameters = signature.parameters.values()
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return
    try:
        wanted.bind(*(p.name for p in parameters if p.kind in _BY_PLACE))
    except TypeError:
        raise Misuse(
            f"the key function {_name(key)} takes ({_listed(wanted)}), the function ({_listed(signature)}); "
            "name the key function's parameters after those it needs"
        ) from None


def _name(key: Any) -> str:
    return getattr(key, "__qualname__", type(key).__qualname__)
