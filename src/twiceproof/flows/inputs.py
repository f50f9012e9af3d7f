"""A run's input: its arguments encoded for the ledger and decoded from it, by their types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from ..claims.blobs.records import externalise
from ..claims.claim import NO_RESULT, Spill
from ..claims.manager import ClaimManager
from ..claims.results import Packed, declared, json_of, resource_address, unpack
from ..claims.retention import INPUT
from ..claims.states import EXPIRE, is_expired
from ..errors import Misuse, NotDone, ValueRefused
from ..keys.models import from_model, reader
from ..operations import Operation
from ..records import Address, Record, Replace, Written
from ..stores.base import Store
from .engine.run_states import RunState

__all__ = ["Inputs", "own_input", "store_input"]


MOST = 256 * 1024
UNCLAIMED = 30 * 86_400.0  # how long an input is kept for a run that was never started
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_encode = msgspec.json.Encoder(enc_hook=from_model).encode
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


class Inputs:
    """Encodes and decodes by the function's annotations.

    A run sees decoded values, the first time too, as a worker does.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._parameters = inspect.signature(function).parameters
        self._positional = [p.name for p in self._parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        self._decoders: dict[str, Callable[[Raw], Any]] = {}
        self._awaited = inspect.iscoroutinefunction(function)
        if any(p.kind in VARIADIC for p in self._parameters.values()):
            raise Misuse(f"{name} takes *args or **kwargs, which a ledger cannot name; give its parameters names.")

    def pack(self, arguments: dict[str, Any], run: str, claims: ClaimManager) -> Packed:
        """Encode a run's input. A large one is stored beside the run's claim, if `claims` has room for it."""
        try:
            encoded = json_of(arguments)
        except ValueError as error:
            raise ValueRefused(
                f"{self._name} was given something with no JSON form ({error}); pass ids and plain data, and open "
                "connections inside its steps."
            ) from None
        if len(encoded) <= MOST:
            return Packed(inline=Raw(encoded))
        room = claims.room
        if len(encoded) > room:
            raise ValueRefused(
                f"{self._name} was given {len(encoded):,} bytes of input, more than {room:,}; pass the name of a file "
                "or an object instead."
            )
        digest = sha256(encoded).hexdigest()
        return Packed(spill=Spill(digest, len(encoded), f"res://{run}/{INPUT}{digest[:16]}"), text=encoded.decode())

    def unpack(self, store: Store, at: Address, work: RunState) -> Operation[dict[str, Any]]:
        text = yield from unpack(store, at, work.input or NO_RESULT, work.spill)
        if work.spill is not None and not text:  # with its defaults alone it would do something else
            raise Misuse(f"The input of this run of {self._name} is no longer kept; start it with its arguments again.")
        given = _decode(text) if text else {}
        return {name: self._restore(name, raw) for name, raw in given.items() if name in self._parameters}

    def refuse_misfit(self, packed: Packed) -> None:
        """Raise what `unpack` would raise, before anything is claimed."""
        for name, raw in _decode(packed.text or packed.inline).items():
            self._restore(name, raw)

    @property
    def names(self) -> list[str]:
        return list(self._parameters)

    def typed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Plain data converted to the function's annotations."""
        known = {name: value for name, value in arguments.items() if name in self._parameters}
        return {**arguments, **{name: self._restore(name, Raw(_encode(value))) for name, value in known.items()}}

    def call(self, arguments: dict[str, Any]) -> Any:
        rest = dict(arguments)
        first = [rest.pop(name) for name in self._positional if name in rest]
        value = self._function(*first, **rest)
        if not self._awaited and inspect.iscoroutine(value):
            value.close()  # work that has not started: recorded as done, it would be lost
            raise NotDone(f"{self._name} is a def that returns a coroutine; make it an `async def`.")
        return value

    def _restore(self, name: str, raw: Raw) -> Any:
        decode = self._decoders.get(name) or self._decoder(name)
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            wanted = inspect.formatannotation(declared(self._function, name))
            raise Misuse(
                f"{self._name} declares {name}: {wanted}, but was given something else ({error}); correct the "
                "annotation or the call."
            ) from None
        except TypeError:  # a custom class, found out only now
            return msgspec.json.decode(raw)

    def _decoder(self, name: str) -> Callable[[Raw], Any]:
        """Made once: building a decoder takes longer than decoding."""
        try:
            decode = reader(declared(self._function, name))
        except TypeError:  # an annotation without a JSON form: plain values are better than none
            decode = msgspec.json.decode
        return self._decoders.setdefault(name, decode)


def store_input(claims: ClaimManager, at: Address, packed: Packed) -> Operation[None]:
    """Stored before the run exists: a run without its input could not be carried out. Swept if no run follows."""
    for piece in (yield from externalise(claims.shelf, packed.writes(at.space, UNCLAIMED))):
        written = yield from claims.store.write(piece)  # a conflict is with itself: its address is made of its content
        if not isinstance(written, Written) and written.found is not None:
            yield from _take_from_expired(claims.store, at, written.found)


def _take_from_expired(store: Store, at: Address, piece: Record) -> Operation[None]:
    """Take over an input of an expired run, which would be deleted with that run."""
    found = yield from store.read(at)
    if not piece.queue and found.record is not None and is_expired(found.record, found.now):
        yield from store.write(
            Replace(piece.at, None, piece.state, version=piece.version, queue=EXPIRE, due_in=UNCLAIMED)
        )


def own_input(store: Store, at: Address, work: RunState) -> Operation[None]:
    """From now on the input is kept as long as its run."""
    if work.spill is None:
        return
    record = (yield from store.read(resource_address(at.space, work.spill.ref))).record
    if record is not None and record.queue:
        yield from store.write(Replace(record.at, None, record.state, version=record.version))
