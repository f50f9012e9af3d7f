"""The problems over HTTP, as they are written where they are answered: type, status, what is said, the next move."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from twiceproof.server.problems import MEANINGS

from .source import SOURCE, bound, calls, functions, parsed, text
from .table import prose, table

__all__ = ["problems"]

# Where the words are made as it happens: what they come to.
MADE = {
    "bad-query": ("The query is invalid for this route.", "See /openapi.json for what it takes."),
    "claim-lost": ("This token has lost its claim.", "Look at the claim with GET, and stop this work."),
    "draining": ("", "Send requests elsewhere until it is ready."),
    "needs-review": ("Whether this was done is not known.", "Settle it, or claim it with `repeat`: `safe`."),
    "approval-closed": ("The run has ended or the approval has expired.", ""),
    "no-such-flow": ("", "Use one that is named there."),
    "state-conflict": ("The run's state does not allow it.", ""),
    "not-settled": (
        "There is nothing to settle now, or the request is incomplete.",
        "Look at the run, and send what it needs.",
    ),
    "not-replayed": ("The dead letter cannot be replayed as things are.", "Do what the detail says."),
    "own-request": ("The requester cannot approve their own request.", ""),
    "prior-failure": ("It failed before, and is not retried automatically.", "Settle it."),
    "refused": ("The request cannot be carried out.", "Do what the detail says."),
    "stale-view": ("The decision does not come from a recently opened page.", ""),
    "unauthorized": ("The token is missing or invalid.", ""),
    "unreadable-body": ("The body is not JSON.", "Send JSON."),
    "duplicate-name": ("An object in the body has one name twice.", "Send each name once."),
    "wrong-body": ("The body is invalid for this route.", "See /openapi.json for what it takes."),
    "wrong-form": ("The form cannot be read.", ""),
}


class Said(NamedTuple):
    status: int
    kind: str
    detail: str
    move: str


def problems(_: str) -> list[str]:
    """One row for each type and status; where it is said in several places, what is said first."""
    found: dict[tuple[int, str], Said] = {}
    for said in [*_written(), *_of_errors()]:
        found.setdefault((said.status, said.kind), said)
    return table(("status", "`type`", "what is said", "`next`"), [_row(found[place]) for place in sorted(found)])


def _row(said: Said) -> tuple[str, ...]:
    detail, move = MADE.get(said.kind, ("", ""))
    return str(said.status), f"`{said.kind}`", _sentence(detail or said.detail), _sentence(move or said.move)


def _sentence(words: str) -> str:
    return prose(words[:1].upper() + words[1:])


def _of_errors() -> Iterator[Said]:
    for kind, status, word in MEANINGS:
        said, _, move = " ".join((kind.__doc__ or "").split()).partition(" Next: ")
        yield Said(status, word, said.partition(" Carries ")[0], move)


def _written() -> Iterator[Said]:
    for folder in ("server", "inbound"):
        for path in sorted((SOURCE / folder).rglob("*.py")):
            yield from _of_module(parsed(path))


def _is_problem(status: int, kind: str) -> bool:
    return 400 <= status < 600 and "/" not in kind  # not a content type


def _of_module(tree: ast.Module) -> Iterator[Said]:
    """Calls that begin with a status and a word: of `problem` itself, or of a function that makes one."""
    own = {name: [argument.arg for argument in found.args.args] for name, found in functions(tree).items()}
    for call in calls(tree):
        match call.args:
            case [ast.Constant(value=int(status)), ast.Constant(value=str(kind)), *_] if _is_problem(status, kind):
                called = call.func.id if isinstance(call.func, ast.Name) else ""
                given = bound(call, own.get(called, ["status", "kind", "detail"]))
                yield Said(status, kind, text(given.get("detail")), text(given.get("next_move") or given.get("move")))
