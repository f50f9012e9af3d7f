"""Tenants: those for which a token was created. Workers serve all of them."""

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
from ...records import Address, Insert, record_kind
from ...stores.base import Store, scan_all

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["WORKER_KIND", "OfTenant", "Tenants", "note_tenant"]


log = logging.getLogger("twiceproof.work")

# Of `presence`, which is loaded with the first worker: a sweep must know every kind.
WORKER_KIND = record_kind("worker", expires=True)
SPACE, KIND = "~tenants", record_kind("tenant")  # no tenant's own: a name has no tilde
FRESH = 5.0  # seconds after which the list is read again
PAGE = 1_000


def note_tenant(store: Store, tenant: str) -> Operation[None]:
    """Record a tenant, so that workers serve it. It stays: a revoked token leaves runs behind."""
    yield from store.write(Insert(Address(SPACE, KIND, validate_name("tenant", tenant)), "{}"))


class Tenants:
    """The known tenants, read from time to time; while the store is unavailable the list stays as it was."""

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
        """Add a tenant that this process has seen: its workers need not wait for the next read."""
        if tenant not in self._known:
            self._known.setdefault(tenant)
            for worker in list(self.workers):
                worker.wake()


def _listed(store: Store) -> Operation[list[str]]:
    return [record.at.key for record in (yield from scan_all(store, KIND, space=SPACE))]


class Shared(Protocol):
    """Something declared once, of which each tenant has a view."""

    def of(self: V, tenant: str) -> V: ...


V = TypeVar("V", bound=Shared)


class OfTenant(MutableMapping[str, V]):
    """The declarations of an app, as one tenant sees them; later ones included."""

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
