"""What the stand-in answers: by request, and by what was done before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import Misuse

__all__ = ["REPEATABLE", "Answer", "Answers", "answers_from", "counts_from"]

REPEATABLE = ("PUT ", "DELETE ")  # once more, they change nothing


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """`after` names a request: before it was carried out there is nothing here yet, and the answer is 404."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}
    after: str = ""


class Answers(Struct, frozen=True):
    """By `METHOD host/path`, or `METHOD /path` for every host. A path that ends with * begins so."""

    known: dict[str, Answer]

    def find(self, asked: str, digest: str, was_done: Callable[[str], bool]) -> Answer:
        for pattern, answer in self.known.items():
            if matches(pattern, asked):
                there = not answer.after or was_done(answer.after)
                return answer if there else Answer(404, {"error": f"not before {answer.after}"})
        if asked.startswith(("GET ", "HEAD ")):
            return Answer(404, {"error": "nothing is known of it; give an answer"})
        return Answer(200, {"id": digest})


def matches(pattern: str, asked: str) -> bool:
    """`asked` is METHOD host/path."""
    method, _, place = pattern.partition(" ")
    asked_method, _, asked_place = asked.partition(" ")
    if place.startswith("/"):
        asked_place = "/" + asked_place.partition("/")[2]
    same = asked_place.startswith(place[:-1]) if place.endswith("*") else asked_place == place
    return method == asked_method and same


def answers_from(given: dict[str, Any]) -> Answers:
    """Checked where they are given; a wrong one would be found in mid-play."""
    if not isinstance(given, dict):
        raise Misuse('Answers are given by request; write {"POST /charges": {"status": 201, "body": {"id": "ch_1"}}}.')
    try:
        known = {_pattern(name): msgspec.convert(value, Answer) for name, value in given.items()}
    except msgspec.ValidationError as error:
        raise Misuse(f'An answer is {{"status": 201, "body": …, "headers": …, "after": …}}; {error}.') from None
    return Answers(known)


def counts_from(given: Sequence[str]) -> tuple[str, ...]:
    """Requests of which each one is an effect, though their method lets them be repeated."""
    if isinstance(given, str):
        raise Misuse(f'Requests that are counted are a list; write counts=["{given}"].')
    found = tuple(_pattern(name) for name in given)
    for name in found:
        if not name.startswith(REPEATABLE):
            raise Misuse(f"{name!r} is always counted; leave it out: counts is for PUT and DELETE.")
    return found


def _pattern(name: str) -> str:
    method, _, place = name.partition(" ")
    if not (method.isupper() and "/" in place):
        raise Misuse(f'{name!r} names no request; write it as "POST /invoices" or "GET api.shop.test/invoices/*".')
    return name
