"""Makes an operation's keys: from a template, or from a function of the call's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from ..errors import KeyRefused, Misuse
from .field import Field
from .key import validate_key
from .template import Template

__all__ = ["KeyMaker"]

_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

Make = Callable[[Mapping[str, Any]], str]


class KeyMaker:
    """Built once per operation. `fields` is what a template looks at, `takes` the arguments a function asks for."""

    def __init__(self, key: str | Callable[..., str], function: Callable[..., Any] | Signature) -> None:
        signature = function if isinstance(function, Signature) else inspect.signature(function)
        self.function = None if isinstance(key, str) else key
        self._make: Make
        self.fields: tuple[Field, ...] = ()
        self.takes: tuple[str, ...] = () if isinstance(key, str) else _takes(key, signature)
        if isinstance(key, str):
            template = _checked(Template(key), signature)
            self.fields, self._make = template.fields, template.render
        else:
            self._make = _from_function(key, signature)

    @property
    def is_function(self) -> bool:
        return self.function is not None

    def make(self, arguments: Mapping[str, Any]) -> str:
        """The key for a call's arguments, by name, defaults applied. Raises KeyRefused."""
        return validate_key(self._make(arguments))


def _checked(template: Template, signature: Signature) -> Template:
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
    return lambda arguments: _text(call(arguments), name)


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
    """The arguments that it names. One that takes whatever comes (`*args`, `**kwargs`) says nothing of what it uses."""
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
    """The function's parameters that the key function asks for by name, or None if it uses other names."""
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
    """Found out when decorated, not at the first event in the night."""
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
