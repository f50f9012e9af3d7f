"""Changes a document that has other writers: reads it, computes the change, writes it if nobody else has, and otherwise
starts again.

Such a change can be repeated: the write carries the ETag that was read, so at most one of two requests with the same
ETag is carried out. A change that was made is recognised by its mark, or because nothing is left to change.
"""

from __future__ import annotations

import copy
import functools
import logging
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct, structs

from ..clock import jitter
from ..errors import Misuse, NotDone, OutcomeUnknown, TwiceproofError
from ..keys.canonical import digest
from ..keys.duration import seconds
from .base import Absent, Happened, Look, Unknown
from .http_answers import refuse, succeeded
from .http_client import HttpAnswer
from .http_request import HttpCall, answer_of
from .repeat import SAFE, Declared, check

__all__ = ["Change", "DocumentChange", "change", "described_change", "examine_etags"]


log = logging.getLogger("twiceproof")

MOST_TRIES = 5
FIRST_PAUSE = 0.05  # seconds; doubled with each try
MOST_MARKS = 1_000  # keys that a document keeps: the oldest are dropped
STALE = 412
Change = Callable[[Any], Any]


class DocumentChange(Struct, frozen=True):
    """One change of one document. Made by `http.change`."""

    call: HttpCall
    change: Change
    mark: str = ""
    own_name: str = ""
    pause: Callable[[float], None] = time.sleep

    @property
    def name(self) -> str:
        return self.own_name or f"change {self.call.name.partition(' ')[2]}"

    @property
    def repeat(self) -> Declared:
        """With a mark it is looked for: the document may have dropped an old one. Nothing has to settle before, since a
        late request meets another ETag, or is found by its mark.
        """
        return check(self.look, settling=0) if self.mark else SAFE

    @property
    def result_type(self) -> Any:
        return Any

    def describe(self) -> dict[str, Any]:
        mark = {"mark": self.mark} if self.mark else {}
        return {**self.call.describe(), "change": described_change(self.change), **mark}

    def perform(self, effect_key: str) -> Any:
        """Return the document as it was written, or as it is if it contains the change already."""
        unanswered: list[OutcomeUnknown] = []  # the last write, if it got no answer
        try:
            return self._tried(effect_key, unanswered)
        except NotDone as refusal:
            if unanswered:
                told = f"{self.name}: a write got no answer, and then: {refusal}"
                raise OutcomeUnknown(told, retry_after=refusal.data.get("retry_after")) from refusal
            raise

    def _tried(self, effect_key: str, unanswered: list[OutcomeUnknown]) -> Any:
        refused: list[str] = []
        for number in range(MOST_TRIES):
            if number:
                self.pause(jitter(FIRST_PAUSE * 2**number))
            document, etag = self._read(effect_key)
            changed = self._changed(document, effect_key)
            if changed is None:
                return document
            try:
                answer = self._write(changed, etag, effect_key)
            except OutcomeUnknown as unknown:  # the next read shows whether it was written
                unanswered[:] = [unknown]
                continue
            if answer.status != STALE:
                self._warn_if_unchanged(etag, answer)
                return changed
            unanswered.clear()  # earlier requests had this ETag or an older one, so they can no longer be carried out
            refused.append(etag)
        document, _ = self._read(effect_key)
        if self._changed(document, effect_key) is None:
            return document
        if unanswered:
            raise unanswered[0]
        raise NotDone(f"{self.name}: {_why_refused(refused)}; it can be tried again.", retry_after=1)

    def _read(self, effect_key: str) -> tuple[Any, str]:
        call = self.call.reading(self.call.url)
        request = call.request(effect_key)
        answer = call.transmit(request)
        if not succeeded(request, answer):
            raise refuse(request, answer, None, (), call.secrets())
        etag = answer.headers.get("etag", "")
        if not etag:
            raise NotDone(
                f"{request.shown} has no ETag, so two writers cannot be told apart; write by http.put, or claim the "
                "document first.",
                final=True,
            )
        return answer_of(answer), etag

    def _changed(self, document: Any, effect_key: str) -> Any:
        """Return the document to write; None if it contains the change already."""
        if self.mark:
            return self._marked(document, effect_key)
        changed = self.change(copy.deepcopy(document))
        if self.change(copy.deepcopy(changed)) != changed:
            raise Misuse(
                f"{self.name}: the change is another one when it is made twice; set values instead of adding to them, "
                'or give mark="applied", a field of the document that keeps the keys of changes.'
            )
        return None if changed == document else changed

    def _marked(self, document: Any, effect_key: str) -> Any:
        if not isinstance(document, dict) or not isinstance(document.get(self.mark, []), list):
            raise Misuse(f"{self.name}: mark={self.mark!r} must be a list in a JSON object, or not be there yet.")
        marks = document.get(self.mark, [])
        if effect_key in marks:
            return None
        changed = self.change(copy.deepcopy(document))
        return {**changed, self.mark: [*marks, effect_key][-MOST_MARKS:]}

    def _write(self, document: Any, etag: str, effect_key: str) -> HttpAnswer:
        call = structs.replace(self.call, json=document, headers={**self.call.headers, "If-Match": etag})
        request = call.request(effect_key)
        answer = call.transmit(request)
        if succeeded(request, answer) or answer.status == STALE:
            return answer
        raise refuse(request, answer, None, (), call.secrets())

    def _warn_if_unchanged(self, etag: str, answer: HttpAnswer) -> None:
        if answer.headers.get("etag") == etag:
            log.warning("%s: its ETag did not change with the document; other writers' changes may be lost", self.name)

    def look(self, effect_key: str) -> Look:
        """Read the document: whether the change is in it. Without a mark, another writer may have overwritten it."""
        try:
            document, _ = self._read(effect_key)
            if self._changed(document, effect_key) is None:
                return Happened(document)
        except Exception as error:  # noqa: BLE001 - a look that fails has found out nothing
            return Unknown(f"the look failed with {type(error).__name__}: {error}"[:300], failed=True)
        if not self.mark:
            return Unknown("the document does not contain the change")
        if len(document.get(self.mark, [])) >= MOST_MARKS:
            return Unknown(f"the document keeps {MOST_MARKS:,} marks, and may have dropped this one")
        return Absent()


def _why_refused(etags: list[str]) -> str:
    if len(etags) == MOST_TRIES and len(set(etags)) == 1:
        weak = ", which is a weak one" if etags[0].startswith("W/") else ""
        return f"the server refused {MOST_TRIES} times the ETag that it gives{weak}"
    return f"another writer was first {MOST_TRIES} times"


def described_change(change: Change) -> str:
    """Return the function's name, and a digest of the plain values that it captured: with other values it is another
    change.

    Values that are not plain (a client, a connection) are left out: they may differ between processes.
    """
    function, *given = _unwrapped(change)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', 'change')}"
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    captured = [*zip(code.co_freevars, map(_cell, cells), strict=True)] if code is not None else []
    captured += enumerate([*(getattr(function, "__defaults__", None) or ()), *given])
    captured += sorted((getattr(function, "__kwdefaults__", None) or {}).items())
    plain = [(str(at), text) for at, value in captured if (text := _plain(value))]
    return f"{name} {sha256(repr(plain).encode()).hexdigest()[:16]}" if plain else name


def _unwrapped(change: Any) -> tuple[Any, ...]:
    if isinstance(change, functools.partial):
        return change.func, *change.args, sorted(change.keywords.items())
    return (change,)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not set yet
        return None


def _plain(value: Any) -> str:
    try:
        return "" if value is None or callable(value) else digest(value)
    except TwiceproofError:
        return ""


def change(
    url: str,
    change: Change,
    *,
    mark: str = "",
    auth: Any = None,
    headers: Mapping[str, Any] | None = None,
    name: str = "",
    timeout: Any = 30.0,
    client: Any = None,
    method: str = "PUT",
) -> DocumentChange:
    """Change a JSON document that others change too, by its ETag.

    Args:
        url: Where the document is read and written.
        change: A pure function from the document to the changed one. Made twice it must be the same (`status = paid`),
            or `mark` must be given (`count += 1`). Plain values that it captured are part of the effect: a replay with
            others stops for review.
        mark: A field of the document with a list of effect keys: a change whose key is in it is not made again.
        auth, headers, name, timeout, client: As for `http.post`; the time is for each request.
        method: How it is written: PUT, or PATCH where the server takes a whole document so.
    """
    if not callable(change):
        raise Misuse(f"change={change!r} is not a function; write http.change(url, lambda document: …).")
    limit = seconds(timeout, name="timeout")
    call = HttpCall(method, url, headers=headers or {}, auth=auth, timeout=limit, client=client)
    if call.is_conditional:
        raise Misuse("http.change writes If-Match itself; leave it out of headers=.")
    return DocumentChange(call, change, mark, name)


def examine_etags(effect: DocumentChange, effect_key: str) -> list[str]:
    """Try on a test document whether a server protects it by ETags. Writes the document, and returns what is wrong.

    Asked: is there an ETag, is a write with another ETag refused with 412, does the ETag change with the document.
    """
    document, etag = effect._read(effect_key)
    found = []
    stale = effect._write(document, '"twiceproof-another"', effect_key)
    if stale.status != STALE:
        found.append(f"{effect.name}: the server ignores If-Match (it answered {stale.status} to another ETag)")
    _, etag = effect._read(effect_key)
    effect._write(_probed(document, effect_key), etag, effect_key)
    after, changed = effect._read(effect_key)
    if changed == etag:
        found.append(f"{effect.name}: its ETag does not change with the document")
    effect._write(document, changed if after != document else etag, effect_key)
    return found


def _probed(document: Any, effect_key: str) -> Any:
    if not isinstance(document, dict):
        raise Misuse("examine_etags needs a JSON object as its document; make one for the test.")
    return {**document, "twiceproof_probe": effect_key}
