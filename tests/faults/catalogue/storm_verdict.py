"""The conditions after a storm of duplicates: one effect for each key, and no caller with another answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

__all__ = ["BUSY", "Answers", "judged"]

BUSY = "in progress"  # InProgress, or 409: come back later
Answers = Counter[tuple[int, str]]  # (key, what was answered) -> how often


def judged(keys: int, calls: int, effects: Iterable[str], answers: Answers) -> Iterator[str]:
    """Return each error. An effect is the line `charge KEY RECEIPT`, written outside of the ledger."""
    receipts = defaultdict(list)
    for line in effects:
        _, key, receipt = line.split(" ", 2)
        receipts[int(key)].append(receipt)
    for key in range(keys):
        if len(receipts[key]) != 1:
            yield f"effects: order:{key}: expected 1, seen {len(receipts[key])}"
    for (key, answer), times in sorted(answers.items()):
        if answer != BUSY and answer not in receipts[key][:1]:
            yield f"replays: order:{key}: expected {receipts[key][:1]} or {BUSY!r}, seen {answer!r} ({times} times)"
    if answers.total() != calls:
        yield f"answers: expected {calls}, seen {answers.total()}"
