"""PostgreSQL's side of the data: batches as a server function's arguments, its answers as outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from ...records import Address, Batch, Conflict, Due, Found, Insert, Outcome, Record, Remove, Replace, Write, Written
from ..base import SPACE_BUSY, SpaceBusy, condition_number
from .schema import TEXT, in_schema

__all__ = [
    "COMMIT_TYPES",
    "ServerFunctions",
    "Values",
    "beside_values",
    "commit_call",
    "commit_values",
    "decode_records",
    "decode_waiting",
    "due_of",
    "due_values",
    "fetch_values",
    "found",
    "outcomes",
]


Values = list[bytes | None]


CONTENT_TYPES = (TEXT, TEXT, "boolean", "double precision", "double precision", TEXT)
INSERT_TYPES = (TEXT, TEXT, TEXT, TEXT, *CONTENT_TYPES)
REPLACE_TYPES = (TEXT, TEXT, TEXT, "bigint", TEXT, *CONTENT_TYPES)
COMMIT_TYPES = (
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    "int[]",
    "bigint[]",
    TEXT,
    TEXT,
    "int[]",
    TEXT,
    TEXT,
    "boolean[]",
    "double precision[]",
    "double precision[]",
    TEXT,
    "int[]",
)
FETCH_TYPES = (TEXT, TEXT, TEXT, TEXT)
BESIDE_TYPES = (TEXT, TEXT, TEXT, "int")
WAITING_TYPES = (TEXT, "int")
DUE_TYPES = (TEXT, TEXT, TEXT, "int", "double precision")


class ServerFunctions:
    """The server's functions in one schema, each with its arguments' types, so that no other fits better."""

    def __init__(self, schema: str) -> None:
        self.insert = _call(schema, "insert", INSERT_TYPES)
        self.replace = _call(schema, "replace", REPLACE_TYPES)
        self.commit = _call(schema, "commit", COMMIT_TYPES)
        self.fetch = _call(schema, "fetch", FETCH_TYPES)
        self.due = _call(schema, "due", DUE_TYPES)
        self.waiting = _call(schema, "waiting", WAITING_TYPES)
        self.beside = _call(schema, "beside", BESIDE_TYPES)


def _call(schema: str, name: str, types: Sequence[str]) -> bytes:
    values = ", ".join(f"${n}::{kind}" for n, kind in enumerate(types, 1))
    return in_schema(f"SELECT {{schema}}.twiceproof_{name}({values})", schema)


Answer = tuple[float, int, list[int] | None, list[tuple[int, Record | None]] | None]
decode_answer = msgspec.json.Decoder(Answer).decode
decode_found = msgspec.json.Decoder(tuple[float, list[Record | None]]).decode
decode_waiting = msgspec.json.Decoder(tuple[float, list[tuple[str, float]]]).decode
decode_due = msgspec.json.Decoder(tuple[float, list[Record], float | None]).decode
decode_records = msgspec.json.Decoder(list[Record]).decode
decode_record = msgspec.json.Decoder(Record).decode


# -- commits -------------------------------------------------------------------------------------


def commit_call(calls: ServerFunctions, batches: Sequence[Batch]) -> tuple[bytes, Values]:
    """The server function for these batches, and its arguments. Lone inserts and replaces have their own."""
    if len(batches) == 1 and len(batches[0].writes) == 1:
        write, nonce = batches[0].writes[0], batches[0].nonce
        if type(write) is Insert:
            return calls.insert, [*_address(write), nonce.encode(), *_content(write)]
        if type(write) is Replace:
            known = str(condition_number(write)).encode()
            return calls.replace, [*_address(write), known, nonce.encode(), *_content(write)]
    return calls.commit, commit_values(batches)


def _address(write: Write) -> Values:
    return [write.at.space.encode(), write.at.kind.encode(), write.at.key.encode()]


def _content(write: Insert | Replace) -> Values:
    return [
        write.state.encode(),
        write.queue.encode(),
        b"t" if write.draw else b"f",
        None if write.lease is None else repr(write.lease).encode(),
        None if write.due_in is None else repr(write.due_in).encode(),
        None if write.body is None else write.body.encode(),
    ]


def in_parts(batches: Sequence[Batch]) -> tuple[list[Batch], list[int]]:
    """Return batches of one space each, and for each of them the place of the first part of its batch."""
    parts: list[Batch] = []
    heads: list[int] = []
    for batch in batches:
        head = len(parts) + 1
        for _, writes in itertools.groupby(batch.writes, lambda write: write.at.space):
            parts.append(Batch(list(writes), batch.nonce))
            heads.append(head)
    return parts, heads


def _parted(batches: Sequence[Batch]) -> tuple[Sequence[Batch], list[int] | None]:
    """Return them as they are where each is of one space, as almost always."""
    return in_parts(batches) if [batch for batch in batches if batch.others] else (batches, None)


def commit_values(batches: Sequence[Batch]) -> Values:
    """Columns per batch, per write, and per put: what an Insert or a Replace has and the others lack. Last, which
    batches are parts of one.
    """
    batches, heads = _parted(batches)
    writes = [write for batch in batches for write in batch.writes]
    puts = [write for write in writes if type(write) is Insert or type(write) is Replace]
    mark, (spaces, nonces, kinds, keys, states, queues, bodies) = _joined(
        [batch.writes[0].at.space for batch in batches],
        [batch.nonce for batch in batches],
        [write.at.kind for write in writes],
        [write.at.key for write in writes],
        [put.state for put in puts],
        [put.queue for put in puts],
        [put.body or "" for put in puts],
    )
    acts = "".join(["i" if type(write) is Insert else _act(write) for write in writes])
    known = ["0" if type(write) is Insert else str(condition_number(write)) for write in writes]
    places = [str(place) for place, batch in enumerate(batches, 1) for _ in batch.writes]
    which = [str(nth) for nth, act in enumerate(acts, 1) if act in PUTS]
    draws = ["t" if put.draw else "f" for put in puts]
    leases, dues = _seconds([put.lease for put in puts]), _seconds([put.due_in for put in puts])
    return [
        mark,
        spaces,
        nonces,
        acts.encode(),
        _array(places),
        _array(known),
        kinds,
        keys,
        _array(which),
        states,
        queues,
        _array(draws),
        leases,
        dues,
        bodies,
        None if heads is None else _array(map(str, heads)),
    ]


PUTS = "irR"  # the acts that write a record


def _act(write: Write) -> str:
    """Return the letter that the server's function knows a write by: insert, replace without or with a body, delete,
    check that it is absent, check its condition."""
    if isinstance(write, Insert):
        return "i"
    if isinstance(write, Replace):
        return "r" if write.body is None else "R"
    if isinstance(write, Remove):
        return "d"
    return "a" if write.absent else "c"


def _joined(*columns: Sequence[str]) -> tuple[bytes, list[bytes]]:
    """Texts joined by a mark that none of them holds, and the mark. Where all are empty, nothing."""
    given = [column if any(column) else () for column in columns]
    between = [max(0, len(column) - 1) for column in given]
    for longer in itertools.count():
        mark = "\x1f" + "\x1e" * longer
        texts = [mark.join(column) for column in given]
        if [text.count(mark) for text in texts] == between:
            break
    return mark.encode(), [text.encode() for text in texts]


def _seconds(column: list[float | None]) -> bytes:
    if column.count(None) == len(column):
        return b"{}"
    return _array(["NULL" if seconds is None else repr(seconds) for seconds in column])


def _array(parts: Iterable[str]) -> bytes:
    return f"{{{','.join(parts)}}}".encode()


def outcomes(batches: Sequence[Batch], text: bytes) -> list[Outcome | SpaceBusy]:
    parts, heads = _parted(batches)
    answers = _part_outcomes(parts, text)
    if heads is None:
        return answers
    of_batches: dict[int, list[Outcome | SpaceBusy]] = {}
    for head, answer in zip(heads, answers, strict=True):
        of_batches.setdefault(head, []).append(answer)
    return [_of_parts(found) for found in of_batches.values()]


def _of_parts(answers: Sequence[Outcome | SpaceBusy]) -> Outcome | SpaceBusy:
    """Return the answer for a whole batch: what hindered one part hindered all."""
    if SPACE_BUSY in answers:
        return SPACE_BUSY
    return next((answer for answer in answers if type(answer) is Conflict), answers[0])


def _part_outcomes(batches: Sequence[Batch], text: bytes) -> list[Outcome | SpaceBusy]:
    now, number, held, misfits = decode_answer(text)
    answers: list[Outcome | SpaceBusy] = [
        Written(str(number + place), number + place, now) for place in range(1, len(batches) + 1)
    ]
    for place in held or ():
        answers[place - 1] = SPACE_BUSY
    if misfits:
        at = [(place, write.at) for place, batch in enumerate(batches) for write in batch.writes]
        for nth, there in misfits:
            place, where = at[nth - 1]
            answers[place] = Conflict(where, there, now)
    return answers


# -- reads ---------------------------------------------------------------------------------------


def fetch_values(addresses: Sequence[Address]) -> Values:
    mark, texts = _joined([at.space for at in addresses], [at.kind for at in addresses], [at.key for at in addresses])
    return [mark, *texts]


def found(text: bytes) -> list[Found]:
    now, records = decode_found(text)
    return [Found(record, now) for record in records]


def due_values(kind: str, queues: Iterable[str], limit: int, hide: float) -> Values:
    given = list(queues)
    mark, (joined,) = _joined(given) if given else (b"", [None])
    return [kind.encode(), mark, joined, str(limit).encode(), repr(hide).encode()]


def beside_values(spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Values:
    mark, texts = _joined(spaces, kinds)
    return [mark, *texts, str(limit).encode()]


def due_of(text: bytes) -> Due:
    now, records, later = decode_due(text)
    return Due(records, None if later is None else max(0.0, later), now)
