"""The lines of a key's history: data in, data out."""

from __future__ import annotations

from twiceproof.claims.acts import ActShape
from twiceproof.claims.duplicates import Blocked
from twiceproof.server.services.key_history import HistoryEntry, history_of_acts, history_of_repeats, in_order


def test_a_story_is_told_in_order_of_time() -> None:
    lines = [HistoryEntry(3.0, "ended", "run"), *history_of_repeats([Blocked("stripe", "sync", "1", 2, 1.0, 2.0)])]
    assert [(line.what, line.detail) for line in in_order(lines)] == [
        ("stripe", "2 times, answered; nothing done"),
        ("run", ""),
    ]


def act(verb: str, **more: str) -> ActShape:
    shape = {"id": "1", "by": "ann", "operation": "sync", "key": "1", "said": "", "step": "", "note": "", **more}
    return ActShape(at=1.0, verb=verb, **shape)


def test_an_act_is_told_with_what_was_said_and_a_settlement_is_told_elsewhere() -> None:
    found = [act("retry"), act("decide", step="charge", said="approve", note="seen"), act("settle", said="happened")]
    assert [line.detail for line in history_of_acts(found)] == ["retry", "decide charge approve seen"]
