"""pydantic models as arguments and results: stored as pydantic's own JSON, and restored from it.

pydantic is not imported here: a program that passes models has done so, and others need not install it.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

__all__ = ["from_model", "is_model", "leaves", "mentions_models", "plain_of", "reader", "to_model"]


MASKED = "**********"  # what pydantic writes for a secret


def is_model(kind: Any) -> bool:
    """Return whether it is a model class of pydantic 2.11 or later: earlier ones cannot be read by field names."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base) and _version(pydantic) >= (2, 11)


def _version(pydantic: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(getattr(pydantic, "VERSION", "0")).split(".")[:2] if part.isdigit())


def plain_of(model: Any) -> Any:
    """Return a model's JSON as plain data, by field names. Raises ValueError for a secret, which would be masked."""
    dumped = model.model_dump(mode="json", round_trip=True, by_alias=False)
    if any(leaf == MASKED for leaf in leaves(dumped)):
        secrets = [leaf for leaf in leaves(model.model_dump()) if hasattr(leaf, "get_secret_value")]
        if secrets:
            raise ValueError(f"{type(model).__qualname__} holds a secret; pass the name under which it is found")
    return dumped


def from_model(value: Any) -> Any:
    """Encoder hook: return a model as plain data."""
    if is_model(type(value)):
        return plain_of(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def to_model(kind: type, value: Any) -> Any:
    """Decoder hook: restore a model. Aliases are accepted too: events come with them."""
    if not is_model(kind):
        if isinstance(value, kind):
            return value
        raise TypeError(f"Expected `{kind.__qualname__}`, got `{type(value).__name__}`")
    return _told(lambda: kind.model_validate_json(_encode(value), by_name=True, by_alias=True))  # type: ignore[attr-defined]


def reader(declared: Any) -> Callable[[Any], Any]:
    """Return a function that reads JSON as a type. Raises TypeError for a type without a JSON form."""
    try:
        return msgspec.json.Decoder(declared, dec_hook=to_model).decode
    except TypeError:
        if not mentions_models(declared):
            raise
    from pydantic import TypeAdapter  # a union of models, which pydantic tells apart

    adapter: Any = TypeAdapter(declared)
    return lambda text: _read(adapter, text)


def _read(adapter: Any, text: Any) -> Any:
    try:
        raw = bytes(text) if isinstance(text, msgspec.Raw) else text
        return _told(lambda: adapter.validate_json(raw, by_name=True, by_alias=True))
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from None


def mentions_models(declared: Any) -> bool:
    """Return whether a type is a model or contains one."""
    return is_model(declared) or any(mentions_models(part) for part in typing.get_args(declared))


def _told(make: Callable[[], Any]) -> Any:
    """Raise errors on one line and without the input, which may be confidential."""
    try:
        return make()
    except ValueError as error:
        errors: Any = getattr(error, "errors", None)
        if errors is None:
            raise
        what = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors(include_url=False)]
        raise ValueError("; ".join(what)) from None


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in a value that are no containers."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from leaves(item)
    else:
        yield value


_encode = msgspec.json.Encoder().encode
