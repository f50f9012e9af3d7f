"""Runtime: what every run of an app shares; ownership checks; postponing."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from ..claims.claim import run_address, space_of_run
from ..claims.error_classification import ErrorRegistry
from ..claims.held_claim import Heartbeat
from ..claims.manager import FOR_EVER, ClaimManager
from ..claims.run_index import resolve_run
from ..claims.states import Lifetime
from ..clock import Clock, Ids
from ..errors import Misuse, NoSuchWait
from ..operations import Operation
from ..records import Address, Record, Replace
from ..stores.base import Store
from .engine.context import session_var
from .engine.ledger_flusher import LedgerFlusher

__all__ = ["Runtime", "own_approval", "own_run", "own_space", "postpone", "require_own_run"]


class Runtime:
    """Plain holder: claims and their heartbeat, the courier, what errors mean, the clock and the dice."""

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
        self._tenant = tenant
        self._views: dict[str, Runtime] = {}
        self.where = where
        self.url = url  # where callbacks reach this app
        self.best_effort = best_effort
        self.roll = roll
        self.courier = LedgerFlusher()
        self.verdicts = ErrorRegistry()
        self.lives: dict[str, Lifetime] = {}  # of the flows that are declared here
        self._draining = False

    @property
    def tenant(self) -> str:
        """Inside a run, that run's own: what its function claims, starts or looks for is its tenant's too."""
        session = session_var.get() if self.root is self else None
        return self._tenant if session is None or session.parts.root is not self else session.parts._tenant

    @tenant.setter
    def tenant(self, name: str) -> None:
        self._tenant = name

    def life_of(self, at: Address) -> Lifetime:
        """How long an ended run is kept; for ever, if its flow is not declared here."""
        return self.lives.get(at.space.split("/", 2)[1], FOR_EVER)

    @property
    def draining(self) -> bool:
        """This process is about to stop: no step is begun, whoever's."""
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
    """A tenant's run, by its id or as FLOW/KEY."""
    return require_own_run(tenant, (yield from resolve_run(store, tenant, name)))


def own_space(tenant: str, run: str) -> str:
    """Where everything of a run lies, by a stored reference to it."""
    return require_own_run(tenant, run_address(space_of_run(run))).space


def own_approval(tenant: str, at: Address) -> Address:
    if not _is_own(tenant, at):
        raise NoSuchWait("There is no such approval here; list them with: twiceproof approvals list")
    return at


def _is_own(tenant: str, at: Address) -> bool:
    """A tenant's name has no slash."""
    return at.space.partition("/")[0] == tenant


def postpone(store: Store, record: Record, seconds: float) -> Operation[None]:
    """Only if nobody has touched it since it was handed out. Everything else about it stays as it is."""
    due = Replace(record.at, None, record.state, version=record.version, queue=record.queue, due_in=seconds)
    yield from store.write(due)
