"""Encodes results for the ledger and decodes them with their declared type."""

from __future__ import annotations

import inspect
import math
import typing
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import UNSET, Raw, Struct

from ..errors import Misuse, ResultTypeWarning, ValueRefused
from ..keys.models import from_model, is_model, leaves, mentions_models, reader
from ..operations import Operation
from ..records import Address, Insert
from ..stores.base import Store
from .blobs.records import RESOURCE_KIND, TEXT, load
from .claim import NO_RESULT, Claim, Held, Spill
from .states import EXPIRE

__all__ = [
    "SPILL_LIMIT",
    "Misfit",
    "Packed",
    "ResultType",
    "declared",
    "encode_given_result",
    "json_of",
    "json_reader",
    "only_described",
    "pack",
    "resource_address",
    "unpack",
]


def declared(function: Callable[..., Any], name: str) -> Any:
    """Return the declared type of a parameter, or of the result (`return`). Any: none is declared, or not readable."""
    written = getattr(function, "__annotations__", {})
    if name not in written:
        return Any
    generic = getattr(function, "__type_params__", ())
    only = SimpleNamespace(__annotations__={name: written[name]}, __type_params__=generic)
    try:
        return typing.get_type_hints(only, getattr(inspect.unwrap(function), "__globals__", {}))[name]
    except Exception:  # noqa: BLE001 - a name that exists only for type checkers
        return Any


INLINE_LIMIT = 64 * 1024
SPILL_LIMIT = 8 * 1024 * 1024
PLAIN = (str, int, float, bool, type(None), list, dict)

_encode = msgspec.json.Encoder(enc_hook=from_model).encode


class Misfit(Exception):
    """A result on record does not fit the type that its function declares now."""


class Packed(Struct, frozen=True):
    """A result ready to be stored: in the claim, in a resource beside it, or as a digest only."""

    inline: Raw = NO_RESULT
    spill: Spill | None = None
    text: str = ""

    def writes(self, space: str, due_in: float | None) -> tuple[Insert, ...]:
        """Return the write of the resource beside the claim, if there is one. It is removed with the claim's result."""
        if self.spill is None or not self.spill.ref:
            return ()
        queue = "" if due_in is None else EXPIRE
        return (Insert(resource_address(space, self.spill.ref), self.text, queue=queue, due_in=due_in),)

    def is_kept_in(self, claim: Claim) -> bool:
        """Return whether a claim has this very result."""
        if claim.spill is not None and self.spill is not None:
            return claim.spill.digest == self.spill.digest
        return bytes(claim.result) == bytes(self.inline) and claim.spill == self.spill


def pack(value: Any, held: Held, *, large: str = "spill", mark: str = "", most: int = SPILL_LIMIT) -> Packed:
    """Encode a result. Never fails: the work is done, and that must be recorded with any result.

    `mark` tells the results of one run's steps apart; `most` is the largest size.
    """
    try:
        encoded = json_of(value)
    except ValueError as error:
        return Packed(spill=Spill("", 0, reason=f"{type(value).__name__} has no JSON form: {error}"))
    if len(encoded) <= INLINE_LIMIT:
        return Packed(inline=Raw(encoded))
    digest = sha256(encoded).hexdigest()
    if large == "digest" or len(encoded) > most:
        return Packed(spill=Spill(digest, len(encoded), reason="too large to keep"))
    ref = f"res://{held.run}/{held.fence}{_short(mark)}"
    return Packed(spill=Spill(digest, len(encoded), ref), text=encoded.decode())


def _short(mark: str) -> str:
    """Return a short digest of a step's name, which may hold anything, for an address."""
    return "-" + sha256(mark.encode()).hexdigest()[:12] if mark else ""


def encode_given_result(result: Any) -> Raw:
    """Encode a result that a person gave. Raises ValueRefused, so that they can correct it."""
    try:
        return Raw(json_of(result))
    except ValueError as error:
        raise ValueRefused(
            f"The result has no JSON form ({error}); say it with plain data, null for nothing."
        ) from None


def only_described(value: object) -> str:
    """Say that a result is an effect which was described and not performed; "": it is not.

    Recorded as done, it would be lost. Known by its members: effects are of a layer above.
    """
    kind = type(value)
    if not (hasattr(kind, "perform") and hasattr(kind, "look") and hasattr(kind, "describe")):
        return ""
    name = getattr(value, "name", kind.__name__)
    return (
        f"it returned an effect ({name}) that was only described, and nothing was sent; perform it with app.effects in "
        "a flow, or return it from a function under @app.effect"
    )


def json_of(value: Any) -> bytes:
    """Return the JSON of a value. Raises ValueError for what has none, or one that comes back as something else."""
    try:
        encoded = _encode(value)
        if b"null" in encoded:
            _refuse_not_a_number(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
    return encoded


def _refuse_not_a_number(value: Any) -> None:
    """Refuse NaN, which the encoder writes as null: a replay would differ from the first answer."""
    if isinstance(value, Raw):  # came in as JSON
        return
    for item in leaves(msgspec.to_builtins(value, enc_hook=from_model)):
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{item} is not a JSON number")


def resource_address(space: str, ref: str) -> Address:
    return Address(space, RESOURCE_KIND, ref.rsplit("/", 1)[1])


def unpack(store: Store, at: Address, result: Raw, spill: Spill | None) -> Operation[str | Raw]:
    """Return the result's JSON from the claim or its resource; empty if it was not kept."""
    if spill is None or not spill.ref:
        return result
    found = yield from store.read(resource_address(at.space, spill.ref))
    if found.record is None or found.record.state == TEXT:
        return found.record.body if found.record else ""
    with (yield from load(found.record)) as file:
        return file.read().decode()


class ResultType:
    """Restores the type of a function's results by its return annotation, which is read when first needed.

    `returned` is the type where the annotation says something else.
    """

    def __init__(self, function: Callable[..., Any], name: str, returned: Any = UNSET) -> None:
        self._function = function
        self._returned = returned
        self._name = name
        self._decode: Callable[[str | bytes | Raw], Any] | None = None
        self._typed = False
        self._looked = False
        self._too_large = 0  # bytes of a result that there was no room for

    def prepare(self) -> None:
        """Read the annotation, before the effect runs: a type that cannot be stored is refused early."""
        if self._decode is None:
            returned = declared(self._function, "return") if self._returned is UNSET else self._returned
            self._typed = returned is not Any
            self._decode = _decoder(returned, self._name)

    def warn_if_too_large(self, room: int) -> None:
        """Warn, before the effect runs, if the last result was too large to keep: the next may be, too."""
        if self._too_large > room:
            self._warn(
                f"{self._name} returned {self._too_large:,} bytes before, more than the {room:,} that can be kept; its "
                "run will wait for a person. Give the app a place for large values (resources=…), or return less.",
            )

    def _warn(self, message: str) -> None:
        """Warn at the function's own line: the frames here are ours, and a worker's thread has no others."""
        function = inspect.unwrap(self._function)
        if not inspect.isfunction(function):
            warnings.warn(message, ResultTypeWarning, stacklevel=3)
            return
        code, seen = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
        place = (code.co_filename, code.co_firstlineno)
        warnings.warn_explicit(message, ResultTypeWarning, *place, module=function.__module__, registry=seen)

    def fits(self, packed: Packed) -> bool:
        """Return whether a result fits its declared type. Decided when it is recorded, and stored with it."""
        text = packed.inline or packed.text
        if self._decode is None or not self._typed or not text:
            return True
        try:
            self._decode(text)
        except msgspec.ValidationError:
            return False
        return True

    def restore(self, text: str | bytes | Raw, *, loose: bool) -> Any:
        """Decode a result. `loose`: where it does not fit its type, which was known before, return plain JSON."""
        if self._decode is None:
            self.prepare()
            assert self._decode is not None  # noqa: S101 - set by prepare
        try:
            return self._decode(text)
        except msgspec.ValidationError as error:
            if not loose:
                raise Misfit(f"its result on record no longer fits what {self._name} declares ({error})") from None
            self._warn(
                f"{self._name} returned something else than it declares ({error}); it is handed back as "
                "plain JSON. Correct the annotation.",
            )
            return msgspec.json.decode(text)

    def warn_if_lossy(self, value: Any, packed: Packed) -> None:
        """Warn if this value will not come back as it is. Called after it is recorded: the warning may be an error."""
        if packed.spill is not None and packed.spill.reason:
            self._too_large = max(self._too_large, packed.spill.size)
            self._warn(
                f"The result of {self._name} is not kept ({packed.spill.reason}); a duplicate will be told so. "
                "Return something smaller or plainer.",
            )
        elif not self._typed:
            self._mind_untyped(value, packed)

    def _mind_untyped(self, value: Any, packed: Packed) -> None:
        if type(value) not in PLAIN:
            self._warn(
                f"{self._name} returns {type(value).__name__} and does not declare it, so it comes back as "
                f"plain JSON, the first time too. Annotate it: -> {type(value).__name__}",
            )
        elif not self._looked and value and isinstance(value, list | dict):
            self._looked = True  # once: this is on the way of every call
            self._look_inside(value, packed)

    def _look_inside(self, value: list[Any] | dict[Any, Any], packed: Packed) -> None:
        if _differ(msgspec.json.decode(packed.inline or packed.text), value):
            kind = type(value).__name__
            self._warn(
                f"{self._name} returns a {kind} with something in it that JSON has no type for (a date, a tuple, an "
                "object, a key that is no text), so it comes back as plain JSON, the first time too. Annotate it: "
                f"-> {kind}[…]",
            )


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # noqa: BLE001 - a class whose comparison fails: the work is done, and that is on record
        return True


def _refuse_unknown(returned: Any) -> None:
    """Refuse classes that cannot be decoded: the decoder would find out only after the work is done."""
    try:
        info = msgspec.inspect.type_info(returned)
    except TypeError:
        if mentions_models(returned):  # a union of models, which pydantic reads
            return
        raise
    for custom in _customs(info, set()):
        raise TypeError(f"{custom.__qualname__} is a class of its own kind")


def _customs(part: Any, seen: set[int]) -> Iterator[type]:
    if id(part) in seen:  # a type may contain itself
        return
    seen.add(id(part))
    if isinstance(part, msgspec.inspect.CustomType):
        if part.cls is not object and not is_model(part.cls):  # anything is an object
            yield part.cls
    elif isinstance(part, tuple):
        for item in part:
            yield from _customs(item, seen)
    elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in part.__struct_fields__:
            yield from _customs(getattr(part, name), seen)


def json_reader(declared: Any) -> Callable[[Any], Any]:
    """Return a function that reads JSON as a declared type. Raises TypeError for a type without a JSON form."""
    if declared in (Any, object) or isinstance(declared, typing.TypeVar):
        return msgspec.json.decode
    _refuse_unknown(declared)
    return reader(declared)


def _decoder(returned: Any, name: str) -> Callable[[Any], Any]:
    try:
        return json_reader(returned)
    except TypeError as error:
        shown = inspect.formatannotation(returned)
        raise Misuse(
            f"{name} returns {shown}, which has no JSON form ({error}); return a dataclass, a msgspec.Struct, a "
            "pydantic model or plain values, or annotate it -> None."
        ) from None
