"""Data of claims: the stored claim, its states and addresses, run ids, and the outcomes of taking one."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import b2a_base64
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from ..errors import CannotOpen, Misuse
from ..records import SELF, Address, Check, Insert, Record, Write, record_kind

__all__ = [
    "CLAIM",
    "DONE",
    "FAILED",
    "HELD",
    "INDEX",
    "NO_RESULT",
    "QUEUED",
    "REVIEW",
    "RUN",
    "RUN_ID",
    "RUN_POINTER",
    "SELF",
    "TRIMMED",
    "WAITING",
    "Busy",
    "Claim",
    "Done",
    "Failed",
    "Fault",
    "Held",
    "InReview",
    "LostHold",
    "Mismatch",
    "Parked",
    "Settlement",
    "Space",
    "Spill",
    "TakeOutcome",
    "address_of",
    "alone",
    "body_of",
    "claim_of",
    "index_address",
    "is_abandoned",
    "is_short_id",
    "other_kind",
    "parse_space",
    "run_address",
    "run_id",
    "short_id",
    "shown_id",
    "shown_run",
    "space_of",
    "space_of_run",
    "validate_name",
]


NO_RESULT = Raw()  # as opposed to the result null
TRIMMED = Raw(b"{}")  # what a tombstone keeps of a run's work: that it was a run

HELD, DONE, FAILED, REVIEW = "held", "done", "failed", "review"
QUEUED, WAITING = "queued", "waiting"  # only runs: left to a worker; parked on a timer, a callback or a retry

# Two kinds of records, so that a list of the ones does not read the others. Runs are swept first.
RUN = record_kind("run", expires=True, by_family=True)
CLAIM = record_kind("claim", expires=True)
RUN_ID = "run_"  # how a run's id begins
RUN_POINTER = record_kind("runid", expires=True, points_to_run=True)  # an index record: from a short id to its run
INDEX = "~runs"  # not a tenant: names have no tilde. The record says whose run it is
ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: no i, l, o, u
DIGEST_LETTERS = 20
# No base64 has a length of 1 modulo 4, so that no id of an older release has this one.
SHORT_LENGTH = len(RUN_ID) + DIGEST_LETTERS + 1
_PAIRS = [first + second for first in ID_LETTERS for second in ID_LETTERS]
_VALUES = bytes.maketrans(ID_LETTERS.encode(), bytes(range(32)))
_DOUBLED = bytes.maketrans(bytes(range(32)), bytes(2 * value if value < 16 else 2 * value - 31 for value in range(32)))
NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@")


class Fault(Struct, frozen=True, omit_defaults=True, gc=False):
    """An error as it is stored: its type and message, never the object itself."""

    type: str
    message: str = ""
    retryable: bool = False

    def weighs_like(self, other: Fault | None) -> bool:
        """Return whether both faults agree about trying again."""
        return other is not None and other.retryable == self.retryable


class Spill(Struct, frozen=True, omit_defaults=True, gc=False):
    """A result that is not in the claim itself: kept as a resource, or only its digest."""

    digest: str
    size: int
    ref: str = ""  # res://… where it is kept; "" where only the digest is
    reason: str = ""


class Settlement(Struct, frozen=True, omit_defaults=True, gc=False):
    """A person's decision about an unknown outcome."""

    verdict: str
    by: str
    at: float
    note: str = ""


def is_abandoned(claim: Claim) -> bool:
    """Whether a person decided that it is not to be tried again. Says something of a claim that has failed."""
    return claim.settled is not None and claim.settled.verdict == "abandon"


class Claim(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of a claim's record. Its state, fence and lease are the record's own."""

    operation: str
    key: str
    owner: str
    tenant: str = "default"
    fingerprint: str = ""
    attempt: int = 1
    run: str = ""
    link: str = ""
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    reason: str = ""
    settled: Settlement | None = None
    finished_at: float | None = None  # where the record was written again since
    tombstone: float | None = None  # in older ledgers: seconds for which the key outlives its result; -1: for ever
    work: Raw = NO_RESULT  # what a run adds to its claim; flows know its shape
    mistyped: bool = False  # its result did not fit its declared type when it was recorded
    keep: float | None = None  # where its result goes first: seconds that the key is known, from its end; -1: for ever


_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_decode = msgspec.json.Decoder(Claim).decode
_encode = msgspec.json.Encoder().encode


def claim_of(record: Record) -> Claim:
    try:
        return _decode(record.body)
    except msgspec.DecodeError:
        raise _unreadable(record) from None


def _unreadable(record: Record) -> CannotOpen:
    """Return the error for a body that cannot be decoded; without keys, no encrypted body can."""
    if record.body.startswith("sealed:"):
        return CannotOpen("This ledger is sealed, and there are no keys; set TWICEPROOF_KEYS.", at=record.at, key_id="")
    return CannotOpen(f"The claim of {record.at.space!r} cannot be read; restore it from a backup.", at=record.at)


def body_of(value: Any) -> str:
    return _encode(value).decode()


class Space(NamedTuple):
    """The parts of a space of claims and runs. There is one space per unit of work."""

    tenant: str
    operation: str
    key: str


def space_of(tenant: str, operation: str, key: str) -> str:
    """Return the space of a unit of work. The key comes last, as it is: names have no slash, so it is never one."""
    return f"{tenant}/{operation}/{key}"


def parse_space(space: str) -> Space:
    """Return the parts of the space of a claim or a run."""
    return Space(*space.split("/", 2))


def address_of(tenant: str, operation: str, key: str, kind: str = CLAIM) -> Address:
    return Address(f"{tenant}/{operation}/{key}", kind, SELF)  # as `space_of`: this is on the path of every call


def run_address(space: str) -> Address:
    return Address(space, RUN, SELF)


def other_kind(at: Address) -> Address:
    """Return the address of a run with the same operation and key, or of a claim: only one of them may exist."""
    return Address(at.space, CLAIM if at.kind == RUN else RUN, SELF)


def alone(write: Write) -> tuple[Check, ...]:
    """Return the check that goes with the first write of a claim or a run: one key is a claim or a run, never both."""
    if type(write) is Insert and (write.at.kind == CLAIM or write.at.kind == RUN):
        return (Check(other_kind(write.at), absent=True),)
    return ()


def run_id(space: str) -> str:
    """Return the reference to a run that is stored, and was its id in older releases: it encodes the space.

    People and programs are shown `short_id` instead, which does not reveal the key; `resolve_run` takes both.
    """
    return RUN_ID + b2a_base64(space.encode(), newline=False).translate(_URL_SAFE, b"=").decode()


def space_of_run(run: str) -> str:
    """Return the space that a stored reference to a run, or an id of an older release, encodes."""
    text = run.removeprefix(RUN_ID)
    try:
        space = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        space = ""
    if space.count("/") < 2 or run_id(space) != run:
        raise Misuse(f"{run[:80]!r} is not the id of a run, nor FLOW/KEY; list them with: twiceproof runs list")
    return space


def short_id(space: str) -> str:
    """Return four letters of the SHA-256 of all but the end, sixteen (80 bits) of the whole, and a check letter.

    Consecutive keys (order 1001, 1002, …) thus share their first letters for a while: their index records are
    neighbours, and a commit of many writes a few pages of the database instead of one for each.
    """
    text = space.encode()
    hashed = sha256(text[:-2])
    head = hashed.digest()
    hashed.update(text[-2:])
    whole = hashed.digest()
    bits = (int.from_bytes(head[:3]) >> 4) << 80 | int.from_bytes(whole[:10])
    digest = "".join([_PAIRS[bits >> shift & 1023] for shift in range(90, -1, -10)])
    return f"{RUN_ID}{digest}{_check_letter(digest)}"


def _check_letter(digest: str) -> str:
    """Return the Luhn check letter, modulo 32: it detects each single wrong letter, and most swapped neighbours."""
    values = digest.encode().translate(_VALUES)
    return ID_LETTERS[-(sum(values[::2]) + sum(values[1::2].translate(_DOUBLED))) % 32]


def is_short_id(text: str) -> bool:
    """Return whether a text has the form of a short id. Only the index knows whether there is such a run."""
    if len(text) != SHORT_LENGTH or not text.startswith(RUN_ID):
        return False
    digest = text[len(RUN_ID) : -1]
    return set(digest) <= set(ID_LETTERS) and text[-1] == _check_letter(digest)


def shown_id(at: Address) -> str:
    """Return the id to show. A claim that is not a run has no index record, and is shown by its long id."""
    return short_id(at.space) if at.kind == RUN else run_id(at.space)


@lru_cache(maxsize=4_096)  # a duplicate delivery shows the same id again, and hashing it was a tenth of its cost
def shown_run(run: str) -> str:
    """Return the id to show for a stored reference to a run; any other text is returned as it is."""
    try:
        return short_id(space_of_run(run))
    except Misuse:
        return run


def index_address(short: str) -> Address:
    """Return the address of a run's index record: in a space of its own, so that it needs no other record."""
    return Address(f"{INDEX}/{short.removeprefix(RUN_ID)}", RUN_POINTER, SELF)


def validate_name(what: str, name: str) -> str:
    """Return a tenant's or an operation's name. No slash: `a/b` + `c` and `a` + `b/c` would be one space."""
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not NAME_LETTERS.issuperset(name):
        raise Misuse(f"{what} {name!r} is not a name; use 1 to 128 letters, digits, and any of _ . - @")
    return name


class Held(Struct, frozen=True, gc=False):
    """The claim is held here. Every later write carries the fence; nothing is done past the deadline."""

    at: Address
    fence: int
    owner: str
    attempt: int
    run: str
    lease: float
    deadline: float  # local, monotonic: counted from before the store was asked
    queue: str = ""  # where a lapsed run is found by workers
    taken_at: float = 0.0  # the store's time


class Busy(Struct, frozen=True, gc=False):
    """Another process holds the claim."""

    owner: str
    retry_after: float
    run: str


class Done(Struct, frozen=True, gc=False):
    """The work was done before. `result` is its JSON, byte for byte; empty if it is elsewhere (`spill`) or gone."""

    at: Address
    result: Raw
    spill: Spill | None
    run: str
    finished_at: float
    kept_until: float | None = None  # when the key may be forgotten; None: never
    loose: bool = False  # its result did not fit its declared type then, or was said by a person


class Failed(Struct, frozen=True, gc=False):
    """The work failed before. Retryable ones are simply taken again: only a look shows them so."""

    fault: Fault
    retryable: bool
    run: str


class InReview(Struct, frozen=True, gc=False):
    """The outcome is unknown: a person must settle it."""

    reason: str
    run: str
    since: float


class Mismatch(Struct, frozen=True, gc=False):
    """The key is known, with another payload."""

    found: str
    asked: str
    state: str
    run: str


class Parked(Struct, frozen=True, gc=False):
    """A run that no process works on: queued for a worker, or waiting for a timer, a callback or a person."""

    state: str
    why: str
    run: str
    until: float | None = None  # when it goes on by itself; None: not before something arrives


TakeOutcome = Held | Busy | Done | Failed | InReview | Mismatch | Parked


class LostHold(Struct, frozen=True, gc=False):
    """A holder's write was refused because the claim was taken over. Its result is kept as evidence."""

    state: str  # what the claim is now; "" if it is gone
    owner: str
