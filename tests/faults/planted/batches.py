"""How a bug gets between the product and every store: by changing what is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from twiceproof.records import Batch, Write
from twiceproof.stores.grouped import GroupedStore

Change = Callable[[Any, Write], Iterable[Write]]  # the engine and a write: what is written instead


def rewrite(change: Change) -> None:
    """From now on each write of each batch is replaced by what `change` makes of it."""
    commit = GroupedStore._commit

    def changed(self: GroupedStore, batches: Sequence[Batch]) -> Any:
        return commit(self, [_changed(self.engine, batch, change) for batch in batches])

    GroupedStore._commit = changed  # type: ignore[method-assign]


def _changed(engine: Any, batch: Batch, change: Change) -> Batch:
    writes = tuple(other for write in batch.writes for other in change(engine, write))
    return structs.replace(batch, writes=writes or batch.writes)
