"""`by(…)`: how a flow's events are put in order, as a user declares it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Signature
from typing import Any, Literal, get_args

from msgspec import Struct

from ...claims.policy import Duration
from ...errors import KeyRefused, Misuse
from ...keys import KeyMaker, Template, lifetime, seconds
from ..step import called_with
from .version import COMPARES, Compare, Version, read_version

__all__ = ["By", "Gap", "Places", "by"]

Gap = Literal["apply", "park"]


class By(Struct, frozen=True):
    """What `by` was told, checked as far as it can be without the function."""

    object: str | Callable[..., str]
    version: str | Callable[..., Any]
    compare: Compare | None
    gap: Gap
    patience: float
    first: int | None
    fetch: Callable[..., Any] | None
    keep: float | None


def by(
    object: str | Callable[..., str],  # noqa: A002 - the word that users know
    version: str | Callable[..., Any],
    *,
    compare: Compare | None = None,
    gap: Gap = "apply",
    patience: Duration = "30s",
    first: int | None = None,
    fetch: Callable[..., Any] | None = None,
    keep: Duration = "forever",
) -> By:
    """Of each `object`, apply only newer versions: `order=by(object="{order[id]}", version="{order[updated_at]}")`.

    `compare` says how versions compare, where their values do not. `gap="park"` (integers) waits up to `patience` for
    the versions in between; then `fetch`, if given, is asked for the current state, which takes the event's place.
    `first` is the version that an object begins with. `keep` is how long the newest version is remembered.
    """
    if compare is not None and compare not in COMPARES:
        raise Misuse(f"compare={compare!r} means nothing here; say one of {', '.join(COMPARES)}.")
    if gap not in get_args(Gap):
        raise Misuse(f"gap={gap!r} means nothing here; say one of {', '.join(get_args(Gap))}.")
    if gap == "apply" and (fetch is not None or first is not None):
        raise Misuse('fetch= and first= are about gaps, and gap="apply" jumps over them; say gap="park".')
    if gap == "park" and compare not in (None, "integer"):
        raise Misuse(
            f'gap="park" needs integers, for between others nobody can see a gap; leave out compare={compare!r}.'
        )
    if first is not None and (isinstance(first, bool) or not isinstance(first, int)):
        raise Misuse(f"first={first!r} is not an integer; give the version that an object begins with.")
    return By(
        object, version, "integer" if gap == "park" else compare, gap,
        seconds(patience, name="patience", positive=False), first, fetch, lifetime(keep, name="keep"),
    )  # fmt: skip


class Places:
    """A declaration bound to a function: which object a call is about, and which version of it."""

    def __init__(self, told: By, signature: Signature) -> None:
        if not isinstance(told, By):
            raise Misuse('order= takes by(object="{order[id]}", version="{order[updated_at]}"); write it so.')
        self.told = told
        self._object = KeyMaker(told.object, signature)
        self._find, self.argument = _finder(told, signature)

    def object(self, arguments: Mapping[str, Any]) -> str:
        return self._object.make(arguments)

    def version(self, arguments: Mapping[str, Any]) -> Version:
        return read_version(self._find(arguments), self.told.compare, self._field)

    @property
    def _field(self) -> str:
        return self.told.version if isinstance(self.told.version, str) else "of the function"


def _finder(told: By, signature: Signature) -> tuple[Callable[[Mapping[str, Any]], Any], str]:
    """How the version is found, and the argument it is found in: the one that `fetch` stands in for."""
    if isinstance(told.version, str):
        fields = Template(told.version).fields
        if len(fields) != 1 or told.version != f"{{{fields[0].text}}}":
            raise Misuse(f'version={told.version!r} must be one field and nothing else, like "{{order[version]}}".')
        if fields[0].name not in signature.parameters:
            raise Misuse(f"version={told.version!r} looks into {fields[0].name}, which the function does not take.")
        return fields[0].find, fields[0].name
    if not callable(told.version) or inspect.iscoroutinefunction(told.version):
        raise Misuse('version= is a field like "{order[version]}", or a plain function of the arguments.')
    if told.fetch is not None:
        raise Misuse("fetch= must know which argument it stands in for; write version= as a field.")
    function = told.version
    return lambda arguments: _called(function, arguments), ""


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**called_with(function, dict(arguments)))
    except (LookupError, AttributeError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise KeyRefused(f"the version could not be had ({why}); use one that every event has") from error
