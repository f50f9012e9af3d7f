"""Fingerprints: the hash of a request. The same key with another fingerprint is another request."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from ..errors import Misuse, ValueRefused
from .canonical import DEEPEST, digest, fields_of
from .models import is_model, plain_of

__all__ = ["body_hash", "fingerprint"]


_Tree = dict[str, Any]  # {"order": {"updated_at": {}}}: an empty branch is left out whole


def fingerprint(arguments: Mapping[str, Any], ignore: Collection[str] = ()) -> str:
    """Return the hash of a call's arguments, without those named in `ignore`.

    A name may be dotted: "order.updated_at", and "order.lines.seen_at" in every line of a list.
    """
    return digest(_without(arguments, _tree(ignore)) if ignore else arguments)


def body_hash(body: Any, ignore: Collection[str] = ()) -> str:
    """Return the hash of a request's body, without its varying fields: a key where there is no natural one.

    Text and bytes are read as JSON; order and spacing do not matter. Anything else is taken as it is.

    Args:
        body: The body.
        ignore: Its varying fields, such as "sent_at" or "meta.trace".
    """
    if isinstance(body, (str, bytes, bytearray)):
        body = _parse(body)
    return digest(_without(body, _tree(ignore)) if ignore else body)


def _parse(body: str | bytes | bytearray) -> Any:
    try:
        # Decimal, not float: two amounts that differ in the 18th digit are two requests.
        return json.loads(body, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as why:
        reason = str(why) or type(why).__name__
        raise ValueRefused(f"the body is not JSON ({reason}); parse it yourself and hash the result") from why


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a name twice: some readers take the first value, others the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _tree(paths: Collection[str]) -> _Tree:
    if isinstance(paths, str):  # ignore="db" would leave out the arguments d and b
        raise Misuse(f'ignore={paths!r} is one text, not a list of names; write ignore=("{paths}",)')
    return _planted(tuple(paths))


@functools.lru_cache(maxsize=1024)
def _planted(paths: tuple[str, ...]) -> _Tree:
    tree: _Tree = {}
    for path in paths:
        _plant(tree, path)
    return tree


def _plant(tree: _Tree, path: str) -> None:
    *stem, leaf = path.split(".")
    if not leaf or not all(stem):
        raise Misuse(f'ignore has {path!r}, which names no field; write it like "order.updated_at"')
    for name in stem:
        if tree.get(name) == {}:  # "order" is left out whole; "order.id" must not bring the rest back
            return
        tree = tree.setdefault(name, {})
    tree[leaf] = {}


def _without(value: Any, tree: _Tree, room: int = DEEPEST) -> Any:
    """Return the value without the tree's fields; lists are entered, everything else is shared."""
    if room < 0:  # a list too deep, or inside itself: `canonical` refuses it by name
        return value
    if isinstance(value, (list, tuple)):
        return [_without(item, tree, room - 1) for item in value]
    if type(value) is not dict:  # a delivery is plain JSON: it need not be asked whether it is anything else
        if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            value = fields_of(value)
        elif is_model(type(value)):
            value = plain_of(value)
        if not isinstance(value, Mapping):
            return value
    return {
        name: _without(item, tree[name], room - 1) if name in tree else item
        for name, item in value.items()
        if tree.get(name) != {}
    }
