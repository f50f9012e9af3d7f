"""Deliveries kept aside."""

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
from ..errors import Misuse, ResultNotKept
from ..operations import Operation
from ..records import Address, Found, Insert, Record, Remove, Replace, Written, record_kind
from ..stores.base import Store, scan_all
from .envelope import Envelope
from .redaction import redact
from .source import Event

__all__ = [
    "INLINE",
    "DeadLetter",
    "body_of_letter",
    "find_letter",
    "fits",
    "gather",
    "inline",
    "keep_letter",
    "letters",
    "mark_replayed",
    "name_of",
    "pieces",
    "places",
    "read_events",
    "write_events",
]


LETTER_BODY_KIND = RESOURCE_KIND
INLINE = 256 * 1024
PIECE = 6 * 1024 * 1024  # bytes: written as base64 they also fit into the store, should the shelf fail


def inline(body: bytes) -> str:
    return b64encode(body).decode()


def fits(store: Store, size: int) -> bool:
    """Letter and pieces land together, or a letter could be without its body."""
    return size <= INLINE or size <= PIECE * (store.batch_limit - 1)


def pieces(shelf: BlobStore | None, space: str, body: bytes, keep: float) -> Operation[Sequence[Insert]]:
    """To be written with the letter; none for a body that lies in it."""
    if len(body) <= INLINE:
        return ()
    cut = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    put = zip(places(space, len(cut)), cut, strict=True)
    return (yield from externalise(shelf, [Insert(at, inline(part), queue=EXPIRE, due_in=keep) for at, part in put]))


def places(space: str, count: int) -> list[Address]:
    return [Address(space, LETTER_BODY_KIND, f"body-{number}") for number in range(count)]


def gather(store: Store, space: str, count: int) -> Operation[bytes]:
    """The pieces in one again."""
    body = b""
    for at in places(space, count):
        record = (yield from store.read(at)).record
        if record is None:
            raise ResultNotKept("The body of this letter is no longer kept; ask its sender to deliver it again.")
        with (yield from load(record)) as file:
            body += b64decode(file.read())
    return body


def name_of(event: Event) -> str:
    """As a letter can hold it: a source of the user's own may take any value for an id, and one such letter would
    keep all of them from being read.
    """
    return str(event.id).encode("utf-8", "backslashreplace").decode()


def write_events(events: Sequence[Event], paths: Collection[str], asked: Callable[[Event], str]) -> bytes:
    """As the flow would have been given them, each known by the fingerprint that it has now.

    Nothing where there are none, or where a source of the user's own made one that is no plain JSON.
    """
    try:
        return msgspec.json.encode([_hidden(event, paths, asked) for event in events]) if events else b""
    except (TypeError, ValueError, RecursionError):
        return b""


def read_events(body: bytes) -> list[Event]:
    return msgspec.json.decode(body, type=list[Event])


def _hidden(event: Event, paths: Collection[str], asked: Callable[[Event], str]) -> Event:
    try:
        known = asked(event)
    except Misuse:  # it is refused for that, and will be again
        known = ""
    return structs.replace(event, id=name_of(event), payload=redact(event.payload, paths), contents=None, asked=known)


DEAD_LETTER_KIND = record_kind("letter", expires=True)
DAY = 86_400.0
KEEP = 30 * DAY
HEADERS = frozenset({"content-type", "user-agent", "content-encoding"})  # others may hold secrets
MOST_NAMES = 256 * 1024  # characters


class DeadLetter(Struct, frozen=True, omit_defaults=True):
    """One delivery. `id` names it; its body is base64, in `pieces` beside it where it is large, and nowhere where it
    could not be kept. Where it held declared secrets, its events without them stand in for it.
    """

    id: str
    hook: str
    reason: str
    body: str = ""
    digest: str = ""
    size: int = 0
    headers: dict[str, str] = {}
    event: str = ""  # of one event, as letters were written before they had several
    received_at: float = 0.0
    tenant: str = "default"
    pieces: int = 0
    events: tuple[str, ...] = ()
    redacted: bool = False  # the body is a list of events

    @property
    def meant(self) -> tuple[str, ...]:
        """The ids of the events in it that could not be taken in; none: all of it."""
        return self.events or ((self.event,) if self.event else ())

    @property
    def is_whole(self) -> bool:
        """Its body was kept, so that it can be replayed."""
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
    """Once per body and headers that it is read by: neither a sender that insists nor an array fills the store.

    `instead` is kept in place of the body. Then its own digest counts: beside all the rest, from that of the body a
    card's number could be guessed.
    """
    kept = envelope.body if instead is None else instead
    digest = sha256(kept or envelope.body).hexdigest()
    told = sorted((header, text) for header, text in envelope.headers.items() if header.startswith(tuple(allowed)))
    about = f"{hook} {digest} {told or ''}"
    name = f"ltr_{sha256(about.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    at = _address(envelope.tenant, name)
    body = kept if fits(claims.store, len(kept)) else b""
    beside = yield from pieces(claims.shelf, at.space, body, KEEP + DAY)  # never gone before the letter is
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
    """More than a record holds are not named: all of it is replayed, and what was taken in is a duplicate."""
    return () if sum(map(len, events)) > MOST_NAMES else tuple(events)


def _put(store: Store, at: Address, letter: DeadLetter, beside: Sequence[Insert]) -> Operation[DeadLetter]:
    """All of it at once. What is there already stays, and gets what it lacks: events, or its body."""
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
    every = () if not (known.meant and new.meant) else tuple(dict.fromkeys(known.meant + new.meant))
    return structs.replace(new if new.is_whole > known.is_whole else known, events=_within(every))


def _kept(at: Address, letter: DeadLetter, found: Found, keep: float | None) -> Insert | Replace:
    """Without `keep` it goes when it would have gone: its body does, too."""
    due = found.record.due_at if found.record else None
    left = None if due is None else max(0.0, due - found.now)
    return _over(Insert(at, body_of(letter), "kept", queue=EXPIRE, due_in=keep or left), found.record)


def _over(write: Insert, known: Record | None) -> Insert | Replace:
    """What is left of an earlier letter of the same body is written anew, with a new time to go."""
    if known is None:
        return write
    return Replace(write.at, write.body, write.state, version=known.version, queue=write.queue, due_in=write.due_in)


def _pieces_at(store: Store, space: str, count: int) -> Operation[dict[Address, Record]]:
    known = {}
    for at in places(space, count):
        record = (yield from store.read(at)).record
        if record is not None:
            known[at] = record
    return known


def body_of_letter(store: Store, letter: DeadLetter) -> Operation[bytes]:
    if not letter.is_whole:
        raise Misuse(f"The body of {letter.id} was not kept; ask its sender to deliver it again.")
    if not letter.pieces:
        return b64decode(letter.body)
    return (yield from gather(store, _address(letter.tenant, letter.id).space, letter.pieces))


def letters(store: Store, tenant: str, hook: str = "") -> Operation[list[DeadLetter]]:
    """The newest first."""
    kept = [_letter_of(record) for record in (yield from scan_all(store, DEAD_LETTER_KIND))]
    found = [letter for letter in kept if letter.tenant == tenant and hook in ("", letter.hook)]
    return sorted(found, key=lambda letter: -letter.received_at)


def find_letter(store: Store, tenant: str, name: str) -> Operation[DeadLetter]:
    record = (yield from store.read(_address(tenant, name))).record
    if record is None:
        raise Misuse(
            f"There is no letter {name[:80]!r}, or it was replayed; list them with: twiceproof hooks dead-letters"
        )
    return _letter_of(record)


def mark_replayed(store: Store, letter: DeadLetter, left: Sequence[str]) -> Operation[None]:
    """What was taken in after all is struck out. Where nothing is left, letter and body go together: a letter that
    comes now could lose its own.
    """
    at = _address(letter.tenant, letter.id)
    found = yield from store.read(at)
    if found.record is None or _letter_of(found.record) != letter:
        return  # added to meanwhile: the next replay strikes it out
    if left and tuple(left) == letter.meant:
        return
    if left:
        yield from store.write(_kept(at, structs.replace(letter, event="", events=tuple(left)), found, None))
        return
    beside = (yield from _pieces_at(store, at.space, letter.pieces)).values()
    removed = yield from store.write(*(Remove(one.at, version=one.version) for one in (found.record, *beside)))
    if isinstance(removed, Written):
        yield from delete_blobs(beside)


def _allowed(headers: dict[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in HEADERS or name.startswith(beginnings)}


def _address(tenant: str, name: str) -> Address:
    return Address(space_of(tenant, "hook@letters", name), DEAD_LETTER_KIND, "self")


def _letter_of(record: Record) -> DeadLetter:
    return msgspec.json.decode(record.body, type=DeadLetter)
