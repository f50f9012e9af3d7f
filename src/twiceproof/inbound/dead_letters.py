"""Dead letters: deliveries that could not be processed, stored for inspection and replay."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from ..claims.blobs import BlobStore
from ..claims.blobs.records import RESOURCE_KIND, delete_blobs, externalise, load
from ..claims.claim import body_of, space_of
from ..claims.manager import ClaimManager
from ..claims.states import EXPIRE
from ..effects.incidents import DEAD_LETTER_KIND
from ..errors import Misuse, ResultNotKept
from ..operations import Operation
from ..records import Address, Found, Insert, Record, Remove, Replace, Written
from ..stores.base import Store, scan_all
from .redaction import redact
from .source import Envelope, Event

__all__ = [
    "INLINE",
    "DeadLetter",
    "LetterPage",
    "body_of_letter",
    "find_letter",
    "fits",
    "inline",
    "keep_letter",
    "letters",
    "list_letters",
    "mark_replayed",
    "piece_addresses",
    "pieces",
    "read_events",
    "write_events",
]


LETTER_BODY_KIND = RESOURCE_KIND
INLINE = 256 * 1024
PIECE = 6 * 1024 * 1024  # bytes; as base64 a piece still fits into the store if the blob store fails


def inline(body: bytes) -> str:
    return b64encode(body).decode()


def fits(store: Store, size: int) -> bool:
    """Whether a letter and its pieces fit into one batch; otherwise a letter could be stored without its body."""
    return size <= INLINE or size <= PIECE * (store.batch_limit - 1)


def pieces(shelf: BlobStore | None, space: str, body: bytes, keep: float) -> Operation[Sequence[Insert]]:
    """Return the writes for a large body, to be committed with the letter; none if the body is stored inline."""
    if len(body) <= INLINE:
        return ()
    cut = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    put = zip(piece_addresses(space, len(cut)), cut, strict=True)
    return (yield from externalise(shelf, [Insert(at, inline(part), queue=EXPIRE, due_in=keep) for at, part in put]))


def piece_addresses(space: str, count: int) -> list[Address]:
    return [Address(space, LETTER_BODY_KIND, f"body-{number}") for number in range(count)]


def _read_pieces(store: Store, space: str, count: int) -> Operation[bytes]:
    """Return the body, joined from its pieces."""
    body = b""
    for at in piece_addresses(space, count):
        record = (yield from store.read(at)).record
        if record is None:
            raise ResultNotKept("The body of this dead letter is no longer stored; ask its sender to deliver it again.")
        with (yield from load(record)) as file:
            body += b64decode(file.read())
    return body


def write_events(events: Sequence[Event], paths: Collection[str], fingerprint: Callable[[Event], str]) -> bytes:
    """Encode redacted events, each with the fingerprint of its full payload.

    Return b"" if there are none, or if a custom source returned a value that is not plain JSON.
    """
    try:
        return msgspec.json.encode([_redacted(event, paths, fingerprint) for event in events]) if events else b""
    except (TypeError, ValueError, RecursionError):
        return b""


def read_events(body: bytes) -> list[Event]:
    return msgspec.json.decode(body, type=list[Event])


def _redacted(event: Event, paths: Collection[str], fingerprint: Callable[[Event], str]) -> Event:
    try:
        known = fingerprint(event)
    except Misuse:  # refused for this reason, and will be again
        known = ""
    return structs.replace(event, id=event.name, payload=redact(event.payload, paths), contents=None, fingerprint=known)


DAY = 86_400.0
KEEP = 30 * DAY
OPERATION = "hook@dead-letters"
MOST_LETTERS = 1_000  # that are read for one page
HEADERS = frozenset({"content-type", "user-agent", "content-encoding"})  # others may hold secrets
MOST_NAMES = 256 * 1024  # characters


class DeadLetter(Struct, frozen=True, omit_defaults=True):
    """One stored delivery.

    The body is base64, in separate `pieces` if it is large, and missing if it could not be stored. If it held declared
    secrets, its redacted events are stored in its place.
    """

    id: str
    hook: str
    reason: str
    body: str = ""
    digest: str = ""
    size: int = 0
    headers: dict[str, str] = {}
    event: str = ""  # older format: a single event
    received_at: float = 0.0
    tenant: str = "default"
    pieces: int = 0
    events: tuple[str, ...] = ()
    redacted: bool = False  # the body is a list of events

    @property
    def refused_events(self) -> tuple[str, ...]:
        """The ids of the events that were refused; empty if the whole delivery was."""
        return self.events or ((self.event,) if self.event else ())

    @property
    def is_whole(self) -> bool:
        """Whether its body was stored, so that it can be replayed."""
        return bool(self.body or self.pieces or not self.size)


def keep_letter(
    claims: ClaimManager,
    hook: str,
    envelope: Envelope,
    reason: str,
    *,
    allowed: Sequence[str] = (),
    events: Sequence[str] = (),
    instead: bytes | None = None,
) -> Operation[DeadLetter]:
    """Store a delivery once per body and relevant headers, so that retries do not fill the store.

    `instead` is stored in place of the body and is what is hashed: a card number could be guessed from a hash of the
    full body beside the redacted one.
    """
    kept = envelope.body if instead is None else instead
    digest = sha256(kept or envelope.body).hexdigest()
    relevant = sorted((header, text) for header, text in envelope.headers.items() if header.startswith(tuple(allowed)))
    identity = f"{hook} {digest} {relevant or ''}"
    name = f"ltr_{sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    at = _address(envelope.tenant, name)
    body = kept if fits(claims.store, len(kept)) else b""
    beside = yield from pieces(claims.blobs, at.space, body, KEEP + DAY)  # never expires before the letter
    letter = DeadLetter(
        name,
        hook,
        reason[:500],
        inline(body) if len(body) <= INLINE else "",
        digest,
        len(envelope.body),
        _allowed(envelope.headers, tuple(allowed)),
        "",
        envelope.received_at,
        envelope.tenant,
        len(beside),
        _within(events),
        bool(instead),
    )
    return (yield from _put(claims.store, at, letter, beside))


def _within(events: Sequence[str]) -> tuple[str, ...]:
    """Drop the list if it exceeds the size of a record: then all is replayed, and admitted events are duplicates."""
    return () if sum(map(len, events)) > MOST_NAMES else tuple(events)


def _put(store: Store, at: Address, letter: DeadLetter, beside: Sequence[Insert]) -> Operation[DeadLetter]:
    """Write letter and pieces in one batch. An existing letter is kept and completed with events or a body."""
    while True:
        found = yield from store.read(at)
        known = None if found.record is None else _letter_of(found.record)
        merged = _merged(known, letter)
        if known == merged:
            return merged
        anew = known is None or letter.is_whole > known.is_whole
        writes = [_kept(at, merged, found, KEEP if anew else None)]
        if anew:
            there = yield from _pieces_at(store, at.space, len(beside))
            writes += [_over(piece, there.get(piece.at)) for piece in beside]
        if isinstance((yield from store.write(*writes)), Written):
            return merged


def _merged(known: DeadLetter | None, new: DeadLetter) -> DeadLetter:
    if known is None:
        return new
    every = (
        ()
        if not (known.refused_events and new.refused_events)
        else tuple(dict.fromkeys(known.refused_events + new.refused_events))
    )
    return structs.replace(new if new.is_whole > known.is_whole else known, events=_within(every))


def _kept(at: Address, letter: DeadLetter, found: Found, keep: float | None) -> Insert | Replace:
    """The write of a letter. Without `keep` it expires when it was due to, together with its body."""
    due = found.record.due_at if found.record else None
    left = None if due is None else max(0.0, due - found.now)
    return _over(Insert(at, body_of(letter), "kept", queue=EXPIRE, due_in=keep or left), found.record)


def _over(write: Insert, known: Record | None) -> Insert | Replace:
    """Replace the remains of an earlier letter with the same body, with a new expiry."""
    if known is None:
        return write
    return Replace(write.at, write.body, write.state, version=known.version, queue=write.queue, due_in=write.due_in)


def _pieces_at(store: Store, space: str, count: int) -> Operation[dict[Address, Record]]:
    known = {}
    for at in piece_addresses(space, count):
        record = (yield from store.read(at)).record
        if record is not None:
            known[at] = record
    return known


def body_of_letter(store: Store, letter: DeadLetter) -> Operation[bytes]:
    if not letter.is_whole:
        raise Misuse(f"The body of {letter.id} was not stored; ask its sender to deliver it again.")
    if not letter.pieces:
        return b64decode(letter.body)
    return (yield from _read_pieces(store, _address(letter.tenant, letter.id).space, letter.pieces))


class LetterPage(Struct, frozen=True):
    """One page of a list. `after` is the cursor of the next one; None marks the last."""

    letters: Sequence[DeadLetter]
    after: str | None
    before: str | None = None


def list_letters(
    store: Store, tenant: str, hook: str = "", *, limit: int = 100, after: str | None = None
) -> Operation[LetterPage]:
    """Return some dead letters of a tenant, the newest first where the store has that order. Each brings its body, so
    that a page of them is large."""
    from ..claims.lists import list_records  # a late import: `App` is imported faster without it

    prefix = space_of(tenant, OPERATION, "")

    def meant(record: Record) -> bool:
        return record.at.space.startswith(prefix) and hook in ("", _letter_of(record).hook)

    found = yield from list_records(
        store, [(DEAD_LETTER_KIND, None)], meant, limit=limit, after=after, most_read=MOST_LETTERS
    )
    return LetterPage([_letter_of(record) for record in found.records], found.after, found.before)


def letters(store: Store, tenant: str, hook: str = "") -> Operation[list[DeadLetter]]:
    """Return all dead letters of a tenant, newest first."""
    kept = [_letter_of(record) for record in (yield from scan_all(store, DEAD_LETTER_KIND))]
    found = [letter for letter in kept if letter.tenant == tenant and hook in ("", letter.hook)]
    return sorted(found, key=lambda letter: -letter.received_at)


def find_letter(store: Store, tenant: str, name: str) -> Operation[DeadLetter]:
    record = (yield from store.read(_address(tenant, name))).record
    if record is None:
        raise Misuse(
            f"There is no dead letter {name[:80]!r}, or it was replayed; list them with: twiceproof hooks dead-letters"
        )
    return _letter_of(record)


def mark_replayed(store: Store, letter: DeadLetter, left: Sequence[str], by: str = "") -> Operation[None]:
    """Remove the admitted events from a letter. Once none is left, delete letter and body in one batch: a new letter
    of the same body, stored in between, would lose its pieces. `by`: who replayed it, for the record.
    """
    from ..claims.acts import act_beside  # a late import: `App` is imported faster without it

    at = _address(letter.tenant, letter.id)
    found = yield from store.read(at)
    if found.record is None or _letter_of(found.record) != letter:
        return  # changed meanwhile: the next replay removes them
    if left and tuple(left) == letter.refused_events:
        return
    act = act_beside(
        store, found.record, "replay", by, said=letter.hook, note=f"{len(left)} events left" if left else ""
    )
    if left:
        yield from store.write(_kept(at, structs.replace(letter, event="", events=tuple(left)), found, None), *act)
        return
    beside = (yield from _pieces_at(store, at.space, letter.pieces)).values()
    gone = [Remove(one.at, version=one.version) for one in (found.record, *beside)]
    removed = yield from store.write(*gone, *(act if len(gone) < store.batch_limit else ()))
    if isinstance(removed, Written):
        yield from delete_blobs(beside)


def _allowed(headers: dict[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in HEADERS or name.startswith(beginnings)}


def _address(tenant: str, name: str) -> Address:
    return Address(space_of(tenant, OPERATION, name), DEAD_LETTER_KIND, "self")


def _letter_of(record: Record) -> DeadLetter:
    return msgspec.json.decode(record.body, type=DeadLetter)
