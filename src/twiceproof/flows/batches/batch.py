"""A batch: one step for many items, with state per item. What became of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ...claims.claim import Fault
from ...errors import BatchFailed, Misuse
from ...keys import KeyMaker
from ..names import with_id
from ..step import Step

__all__ = ["Batch", "ItemDone", "ItemFailed", "ItemKey"]

R = TypeVar("R")
Kwargs = dict[str, Any]
ItemKey = str | Callable[[Any], str] | None

_ITEM = inspect.Signature([inspect.Parameter("item", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
SHOWN = 3


class ItemDone(Struct, Generic[R], frozen=True):
    """An item whose step is done, and what it returned."""

    key: str
    value: R


class ItemFailed(Struct, frozen=True):
    """An item whose step failed for good."""

    key: str
    fault: Fault


class Batch:
    """Items and their keys, checked before anything is done. Outcomes come in one by one."""

    def __init__(
        self, step: Step, items: Sequence[Any], key: ItemKey, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> None:  # fmt: skip
        self.step = step
        self.items = items
        self.args = args  # the same for every item, after it
        self.kwargs = kwargs or {}
        for item in items[:1]:
            self.arguments(item)  # what does not fit one fits none
        self.keys = _keys(step, items, _maker(step, key, self.arguments))
        self.outcomes: list[ItemDone[Any] | ItemFailed | None] = [None] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def arguments(self, item: Any) -> dict[str, Any]:
        """What the step is called with, by name."""
        try:
            return self.step.arguments.bind((item, *self.args), self.kwargs)
        except TypeError as error:
            raise Misuse(
                f"app.each calls {self.step.name}(item, …), and that does not fit: {error}; nothing was done. Pass "
                "what it needs beside the item after the step: app.each(items, step, …)."
            ) from None

    def name(self, number: int) -> str:
        """Where the ledger keeps this item."""
        return with_id(self.step.name, self.keys[number])

    def done(self, number: int, value: Any) -> None:
        self.outcomes[number] = ItemDone(self.keys[number], value)

    def failed(self, number: int, fault: Fault) -> None:
        self.outcomes[number] = ItemFailed(self.keys[number], fault)

    @property
    def settled(self) -> int:
        return sum(outcome is not None for outcome in self.outcomes)

    def values(self, run: str, *, undoable: bool) -> list[Any]:
        """In the items' order. Raises if any failed; `undoable`: if that is not caught, something is undone."""
        failed = [(outcome.key, outcome.fault) for outcome in self.outcomes if isinstance(outcome, ItemFailed)]
        if failed:
            raise _failure(self.step.name, failed, len(self), run, undoable=undoable)
        return [outcome.value for outcome in self.outcomes if isinstance(outcome, ItemDone)]


def _keys(step: Step, items: Sequence[Any], make: Callable[[Any], str]) -> list[str]:
    keys = [make(item) for item in items]
    seen: dict[str, int] = {}
    for number, found in enumerate(keys):
        if found in seen:
            raise Misuse(
                f"Items {seen[found] + 1} and {number + 1} of {step.name} have the same key {found!r}; nothing was "
                "done. Use a key that tells them apart, or merge them.",
                key=found,
            )
        seen[found] = number
    return keys


def _maker(step: Step, key: ItemKey, arguments: Callable[[Any], dict[str, Any]]) -> Callable[[Any], str]:
    if key is not None:
        maker = KeyMaker(key, _ITEM)
        return lambda item: maker.make({"item": item})
    if not step.has_own_id:
        raise Misuse(f'app.each needs to know {step.name}\'s items again; give it a key="{{item[id]}}".')
    return lambda item: step.own_id(arguments(item)) or ""


def _failure(step: str, failed: list[tuple[str, Fault]], count: int, run: str, *, undoable: bool) -> BatchFailed:
    first = "; ".join(f"{key}: {fault.type}: {fault.message}" for key, fault in failed[:SHOWN])
    more = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    move = "the others are done. Run the flow again with .retry(…): only what failed is tried again."
    if undoable:
        move = (
            "what is done is undone unless the flow catches this. Then start it as something new: "
            f"twiceproof runs fork {run} --key KEY"
        )
    return BatchFailed(
        f"{len(failed)} of {count} items of {step} failed ({first}{more}); {move}",
        step=step, failed=failed, done=count - len(failed), run=run,
    )  # fmt: skip
