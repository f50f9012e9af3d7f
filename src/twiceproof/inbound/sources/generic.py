"""Any other sender that signs with HMAC, described by where its id, type and signature are."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal, get_args

import msgspec

from ...errors import Misuse
from ...keys.canonical import digest
from ..source import WINDOW, Envelope, Event, Poison, Reading
from .parsing import made_up_id, named, object_of, value_at, with_field
from .signed import UNSIGNED, Encoding, Signed, Signer, mac, moment, raw

__all__ = ["Generic"]


Algorithm = Literal["sha256", "sha512", "sha1"]
HEADER = "header:"
PIECE = re.compile(r"(\{[a-z]+\})")
PIECES = {"{body}", "{timestamp}", "{id}", "{url}"}


class Generic(Signer):
    """A sender that signs with HMAC.

    `id` and `type` are paths into the body (`data.order.id`) or headers (`header:X-Event-Id`). `signature` names the
    signature's header; `signs` is the signed text: `{body}`, `{timestamp}.{body}`. Without an id, `fingerprint` names
    fields that are the same in every delivery of one event.
    """

    name = "generic"

    def __init__(
        self,
        *,
        id: str = "",  # noqa: A002 - the name used in documents and declarations
        type: str = "",  # noqa: A002
        fingerprint: Collection[str] = (),
        signature: str,
        algorithm: Algorithm = "sha256",
        encoding: Encoding = "hex",
        prefix: str = "",
        timestamp: str = "",
        signs: str = "",
        url: str = "",
        retry_window: float = Signer.retry_window,
    ) -> None:
        self.id, self.type, self.fingerprint = id, type, _names(fingerprint)
        self.signature, self.timestamp = signature.lower(), timestamp.lower()
        self.algorithm, self.encoding, self.prefix = algorithm, encoding, prefix
        self.pieces = PIECE.split(signs or ("{timestamp}.{body}" if timestamp else "{body}"))
        self.url, self.retry_window = url, retry_window
        self.by_authorization = self.signature == "authorization"
        self.window = WINDOW if timestamp else 0.0
        self.covered = tuple(name for name in (self.timestamp, self._id_if_signed(), self.signature) if name)
        self.needs = tuple(path.removeprefix(HEADER).lower() for path in (id, type) if path.startswith(HEADER))
        self._check()

    def _id_if_signed(self) -> str:
        return self.id.removeprefix(HEADER).lower() if "{id}" in self.pieces else ""

    def _check(self) -> None:
        pieces, places = set(self.pieces), set(PIECE.findall("".join(self.pieces)))
        wrong = (
            (bool(self.id) is bool(self.fingerprint), "it needs id= or fingerprint=, not both"),
            (self.algorithm not in get_args(Algorithm), f"algorithm= must be one of {', '.join(get_args(Algorithm))}"),
            (self.encoding not in get_args(Encoding), f"encoding= must be one of {', '.join(get_args(Encoding))}"),
            (not self.signature, "signature= must name the header of the signature"),
            (not places <= PIECES, f"signs= has an unknown placeholder; use {', '.join(sorted(PIECES))}"),
            ("{body}" not in pieces, "signs= must contain {body}: an unsigned body can be forged"),
            (
                bool(self.timestamp) is not ("{timestamp}" in pieces),
                "timestamp= and {timestamp} in signs= belong together: an unsigned time proves nothing",
            ),
            ("{id}" in pieces and not self.id.startswith(HEADER), "{id} is signed, so id= must be header:NAME"),
        )
        for is_wrong, why in wrong:
            if is_wrong:
                raise Misuse(f"The generic source is declared incorrectly: {why}.")

    def signed_part(self, envelope: Envelope) -> Signed | str:
        given, time = envelope.header(self.signature), envelope.header(self.timestamp)
        at = moment(time) if self.timestamp else None
        if not given or not given.startswith(self.prefix) or (self.timestamp and at is None):
            return UNSIGNED
        if "{url}" in self.pieces and not (self.url or envelope.url):
            return "the URL that the sender calls is not known; give url= to the source"
        return Signed([given.removeprefix(self.prefix)], self._message(envelope, time), at)

    def _message(self, envelope: Envelope, time: str) -> bytes:
        values = {
            "{body}": envelope.body,
            "{timestamp}": raw(time),
            "{url}": raw(self.url or envelope.url),
            "{id}": raw(envelope.header(self._id_if_signed())),
        }
        return b"".join(values.get(piece, raw(piece)) for piece in self.pieces)

    def sign(self, secret: str, message: bytes) -> str:
        return mac(raw(secret), message, self.algorithm, self.encoding)

    def read(self, envelope: Envelope) -> Reading:
        payload = object_of(envelope)
        if isinstance(payload, Poison):
            return payload
        chosen = [value_at(payload, path) for path in self.fingerprint]
        if any(value is None for value in chosen):
            return Poison(f"it lacks one of the fields {', '.join(self.fingerprint)}")
        name = named(digest(chosen) if chosen else self._at(envelope, payload, self.id))
        if isinstance(name, Poison):
            return name
        kind = self._at(envelope, payload, self.type) if self.type else ""
        return [Event(name, payload, kind if isinstance(kind, str) else "", contents=chosen or None)]

    def _at(self, envelope: Envelope, payload: dict[str, Any], path: str) -> Any:
        return envelope.header(path.removeprefix(HEADER)) if path.startswith(HEADER) else value_at(payload, path)

    def example(self, payload: Any = None) -> bytes:
        given = {"order": 1} if payload is None else payload
        if not isinstance(given, dict):
            return msgspec.json.encode(given)
        paths = [path for path in (*self.fingerprint, self.id) if path and not path.startswith(HEADER)]
        for path in paths:
            given = with_field(given, path, made_up_id(given))
        return msgspec.json.encode(given)

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        headers = {"content-type": "application/json"}
        if self.id.startswith(HEADER):
            headers[self.id.removeprefix(HEADER).lower()] = made_up_id(body)
        if self.timestamp:
            headers[self.timestamp] = f"{now:.0f}"
        bare = Envelope(self.name, body, headers, received_at=now, url=self.url or "https://example.com/hooks/generic")
        signature = self.prefix + self.sign(secret, self._message(bare, headers.get(self.timestamp, "")))
        return Envelope(self.name, body, {**headers, self.signature: signature}, received_at=now, url=bare.url)


def _names(fields: Collection[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise Misuse(f'fingerprint={fields!r} is a string, not a list of fields; write fingerprint=("{fields}",)')
    return tuple(fields)
