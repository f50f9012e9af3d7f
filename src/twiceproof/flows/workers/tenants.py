"""The tenants that exist: those of whom somebody was given a token. Workers serve them all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from ...claims.claim import validate_name
from ...clock import Clock
from ...errors import Misuse, StoreError
from ...operations import Operation, block
from ...records import Address, Insert
from ...stores.base import Store

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["OfTenant", "Tenants", "note_tenant"]


log = logging.getLogger("twiceproof.work")

SPACE, KIND = "~tenants", "tenant"  # no tenant's own: a name has no tilde
FRESH = 5.0  # seconds for which the list is believed
PAGE = 1_000


def note_tenant(store: Store, tenant: str) -> Operation[None]:
    """From now on workers look after its runs. It stays: a token that is revoked leaves runs behind."""
    yield from store.write(Insert(Address(SPACE, KIND, validate_name("tenant", tenant)), "{}"))


class Tenants:
    """Read now and then; a store that does not answer leaves the list as it was."""

    def __init__(self, store: Store, own: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known = {own: None}  # in order
        self._read_at: float | None = None
        self._mutex = threading.Lock()
        self.workers: WeakSet[Worker] = WeakSet()

    def known(self) -> list[str]:
        now = self._clock.monotonic()
        with self._mutex:
            due = self._read_at is None or now - self._read_at >= FRESH
            if due:
                self._read_at = now
        if due:
            self._read()
        return list(self._known)

    def _read(self) -> None:
        try:
            for name in block(_listed(self._store)):
                self._known.setdefault(name)
        except StoreError as error:
            log.warning("the tenants cannot be listed, those known are served: %s", error)

    def add(self, tenant: str) -> None:
        """Seen in this process: its workers need not wait for their next look."""
        if tenant not in self._known:
            self._known.setdefault(tenant)
            for worker in list(self.workers):
                worker.wake()


def _listed(store: Store) -> Operation[list[str]]:
    names: list[str] = []
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, space=SPACE, after=after, limit=PAGE)
        names += [record.at.key for record in page.records]
        if page.after is None:
            return names
        after = page.after


class Shared(Protocol):
    """Something declared once, that each tenant has a view of."""

    def of(self: V, tenant: str) -> V: ...


V = TypeVar("V", bound=Shared)


class OfTenant(MutableMapping[str, V]):
    """What is declared on an app, as one tenant sees it. What is declared later is seen, too."""

    def __init__(self, declared: MutableMapping[str, V], tenant: str) -> None:
        self._declared = declared
        self._tenant = tenant

    def __getitem__(self, name: str) -> V:
        return self._declared[name].of(self._tenant)

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __setitem__(self, name: str, value: V) -> None:
        raise Misuse(f"{name} cannot be declared for one tenant; declare it on the app itself, for all.")

    def __delitem__(self, name: str) -> None:
        raise Misuse(f"{name} cannot be taken from one tenant.")
