"""Runtime: the services that all runs of an app share; its tenants; ownership checks; postponing."""

from __future__ import annotations

import copy
import logging
import random
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from ..claims.claim import parse_space, run_address, space_of_run, validate_name
from ..claims.error_classification import ErrorRegistry
from ..claims.held_claim import Heartbeat
from ..claims.manager import FOR_EVER, ClaimManager
from ..claims.states import Lifetime
from ..clock import Clock, Ids
from ..errors import Misuse, NoSuchWait, StoreError
from ..operations import Operation, block
from ..records import Address, Insert, Record, Replace, record_kind
from ..stores.base import Store, scan_all
from .engine.context import session_var
from .engine.ledger_flusher import LedgerFlusher

if TYPE_CHECKING:
    from .workers.worker import Worker

__all__ = [
    "WORKER_KIND",
    "OfTenant",
    "Runtime",
    "SharedDeclarations",
    "Tenants",
    "note_tenant",
    "own_approval",
    "own_run",
    "own_space",
    "postpone",
    "require_own_run",
]


class Runtime:
    """Holds claims and their heartbeat, the ledger flusher, error classification, the clock and the random source."""

    def __init__(
        self,
        claims: ClaimManager,
        heartbeat: Heartbeat,
        *,
        owner: Ids,
        tenant: str,
        where: tuple[str, ...] = (),
        url: str = "",
        best_effort: bool = False,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.claims = claims
        self.store = claims.store
        self.clock: Clock = claims.clock
        self.heartbeat = heartbeat
        self.owner = owner
        self.root = self  # of which this is a tenant's view
        self.app: Any = None  # that has these services
        self._tenant = tenant
        self._views: dict[str, Runtime] = {}
        self.where = where
        self.url = url  # of this app, for callbacks
        self.best_effort = best_effort
        self.roll = roll
        self.flusher = LedgerFlusher()
        self.verdicts = ErrorRegistry()
        self.lives: dict[str, Lifetime] = {}  # retention of the flows that are declared here
        self.beside_worker: list[Callable[[], Any]] = []  # make what runs beside a worker: relay, readers of queues
        # Records a finding: a run's space, a step, ids of several records; `goes_on` if the run does.
        self.report_several: Callable[..., Operation[None]] | None = None
        self._draining = False

    @property
    def tenant(self) -> str:
        """Inside a run, that run's tenant: what its function claims, starts or reads belongs to it, too."""
        session = session_var.get() if self.root is self else None
        return self._tenant if session is None or session.runtime.root is not self else session.runtime._tenant

    @tenant.setter
    def tenant(self, name: str) -> None:
        self._tenant = name

    def life_of(self, at: Address) -> Lifetime:
        """Return how long an ended run is kept; for ever, if its flow is not declared here."""
        return self.lives.get(parse_space(at.space).operation, FOR_EVER)

    @property
    def draining(self) -> bool:
        """This process is about to stop: no step of any run begins."""
        return self.root._draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self.root._draining = value

    def of(self, tenant: str) -> Runtime:
        """The same for another tenant: everything is shared but the name."""
        root = self.root
        if tenant == root._tenant:
            return root
        view = root._views.get(tenant)
        if view is None:
            view = copy.copy(root)
            view._tenant = tenant
            root._views[tenant] = view
        return view


def require_own_run(tenant: str, at: Address) -> Address:
    if not _is_own(tenant, at):
        raise Misuse("There is no such run here; list them with: twiceproof runs list", tenant=tenant)
    return at


def own_run(store: Store, tenant: str, name: str) -> Operation[Address]:
    """Return the address of a tenant's own run, by its id or by FLOW/KEY."""
    from ..claims.queries import resolve_run

    return require_own_run(tenant, (yield from resolve_run(store, tenant, name)))


def own_space(tenant: str, run: str) -> str:
    """Return the space of a run's records, by a stored reference to the run."""
    return require_own_run(tenant, run_address(space_of_run(run))).space


def own_approval(tenant: str, at: Address) -> Address:
    if not _is_own(tenant, at):
        raise NoSuchWait("There is no such approval here; list them with: twiceproof approvals list")
    return at


def _is_own(tenant: str, at: Address) -> bool:
    """Whether an address is in the tenant's spaces; a tenant's name has no slash."""
    return at.space.startswith(f"{tenant}/")


def postpone(store: Store, record: Record, seconds: float) -> Operation[None]:
    """Make a due record due later, unless it was changed since it was handed out. Nothing else of it changes."""
    due = Replace(record.at, None, record.state, version=record.version, queue=record.queue, due_in=seconds)
    yield from store.write(due)


log = logging.getLogger("twiceproof.work")

# Of `presence`, which is loaded with the first worker: a sweep must know every kind.
WORKER_KIND = record_kind("worker", expires=True)
TAIL_KIND = record_kind("tail", expires=True)  # of ordered consumers, for the same reason
TENANTS_SPACE, TENANT_KIND = "~tenants", record_kind("tenant")  # no tenant's own: a name has no tilde
TENANTS_FRESH = 5.0  # seconds after which the list is read again


def note_tenant(store: Store, tenant: str) -> Operation[None]:
    """Record a tenant, so that workers serve it. It stays: a revoked token leaves runs behind."""
    yield from store.write(Insert(Address(TENANTS_SPACE, TENANT_KIND, validate_name("tenant", tenant)), "{}"))


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
            due = self._read_at is None or now - self._read_at >= TENANTS_FRESH
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
    return [record.at.key for record in (yield from scan_all(store, TENANT_KIND, space=TENANTS_SPACE))]


T = TypeVar("T")


class SharedDeclarations(MutableMapping[str, T]):
    """The declarations of an app, as a tenant's view of it has them; later ones included."""

    def __init__(self, declared: MutableMapping[str, T]) -> None:
        self._declared = declared

    def __getitem__(self, name: str) -> T:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __setitem__(self, name: str, value: T) -> None:
        raise Misuse(f"{name} cannot be declared for one tenant; declare it on the app itself, for all.")

    def __delitem__(self, name: str) -> None:
        raise Misuse(f"{name} cannot be taken from one tenant.")


class HasTenantView(Protocol):
    """Something declared once, of which each tenant has a view: a flow."""

    def of(self: V, tenant: str) -> V: ...


V = TypeVar("V", bound=HasTenantView)


class OfTenant(SharedDeclarations[V]):
    """The same of what a tenant has a view of."""

    def __init__(self, declared: MutableMapping[str, V], tenant: str) -> None:
        super().__init__(declared)
        self._tenant = tenant

    def __getitem__(self, name: str) -> V:
        return self._declared[name].of(self._tenant)
