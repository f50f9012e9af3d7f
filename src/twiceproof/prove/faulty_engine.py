"""An engine with injected faults: connections lost before a commit is sent, before it lands, or after it landed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from ..records import Address, Batch, Due, Found, Outcome, Page
from ..stores.base import SPACE_BUSY, Disconnected, Engine, Finding, SpaceBusy
from ..stores.validate import MOST_BODY

__all__ = ["FaultyEngine"]


class _Fault(Struct, frozen=True):
    landed: bool
    error: Exception | None
    meanwhile: Callable[[], object]


class FaultyEngine:
    """Wraps an engine. Faults are queued and hit the next commits, one each, in order."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.batch_limit = inner.batch_limit
        self.body_limit: int = getattr(inner, "body_limit", MOST_BODY)
        self.group_limit = inner.group_limit
        self.reads_first = inner.reads_first
        self.best_effort = inner.best_effort
        self.newest_first = inner.newest_first
        self.one_per_space = inner.one_per_space
        self.links_spaces: bool = getattr(inner, "links_spaces", False)
        self.groups: list[int] = []  # number of batches of each commit
        self._faults: deque[_Fault] = deque()
        self._poison: dict[str, Exception] = {}

    # -- orders ----------------------------------------------------------------------------------

    def lose_reply(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """The next commit lands, but its reply is lost; `meanwhile` happens before the next try."""
        self._faults.append(_Fault(True, Disconnected(OSError("reply lost"), sent=True), meanwhile))

    def lose_request(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """The next commit is sent and never arrives."""
        self._faults.append(_Fault(False, Disconnected(OSError("request lost"), sent=True), meanwhile))

    def refuse_connection(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """The next commit is not sent."""
        self._faults.append(_Fault(False, Disconnected(OSError("refused"), sent=False), meanwhile))

    def fail(self, error: Exception) -> None:
        """The next commit raises this."""
        self._faults.append(_Fault(False, error, lambda: None))

    def be_held(self) -> None:
        """The next commit finds every space locked."""
        self._faults.append(_Fault(False, None, lambda: None))

    def poison(self, key: str, error: Exception) -> None:
        """Every commit that writes to this key raises: a batch that the database itself refuses."""
        self._poison[key] = error

    # -- the engine ------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        self.groups.append(len(batches))
        self._raise_poison(batches)
        if not self._faults:
            return self.inner.commit(batches)
        fault = self._faults.popleft()
        if fault.landed:
            self.inner.commit(batches)
        fault.meanwhile()
        if fault.error is not None:
            raise fault.error
        return [SPACE_BUSY] * len(batches)

    def _raise_poison(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            for write in batch.writes:
                if write.at.key in self._poison:
                    raise self._poison[write.at.key]

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return self.inner.fetch(addresses)

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        return self.inner.scan(kind, space, state, after, limit, newest, prefix)

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        return self.inner.due(kind, queues, limit, hide)

    def examine(self) -> Sequence[Finding]:
        return self.inner.examine()

    def close(self) -> None:
        self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()
