"""The app: opens the store, wires its services and closes them; inline claims; tenant views."""

from __future__ import annotations

import copy
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from ..claims.blobs import open_blob_store
from ..claims.claim import NO_RESULT, Settlement, TakeOutcome, address_of, run_id, validate_name
from ..claims.duplicates import DuplicateCounter
from ..claims.error_classification import NotDoneErrors
from ..claims.held_claim import Heartbeat
from ..claims.manager import ClaimManager
from ..claims.once import ClaimBlock, Once
from ..claims.policy import (
    DEFAULT_KEEP,
    DEFAULT_LEASE,
    Duration,
    OnDuplicate,
    OnFailure,
    Repeat,
    SettleVerdict,
    make_policy,
)
from ..claims.results import encode_given_result
from ..claims.retention import Sweeper, park_unfinished
from ..claims.states import ClaimRequest, Lifetime
from ..clock import Clock, Ids, system_clock
from ..effects.incidents import Incidents
from ..errors import Misuse
from ..flows.flow import HIGH, LOW, NORMAL, Flow
from ..flows.runtime import OfTenant, Runtime, SharedDeclarations, Tenants
from ..flows.step import Step
from ..flows.triggers.poll import DuePolls
from ..flows.triggers.schedule import DueSchedules
from ..flows.workers.due_work import DueRuns, DueWork
from ..inbound.hook import Hook
from ..keys import KeyWatch, fingerprint, validate_key
from ..operations import Operation, block
from ..safe_text import store_words
from ..settings import Settings, from_environment
from ..stores.base import Store
from ..stores.encryption import Keyring
from ..stores.open import anchored, open_store, sqlite_file
from .administration import Administration
from .declarations import Declarations
from .in_flow import InFlow
from .messaging import Messaging
from .reconciliations import Reconciliations
from .triggers import Triggers

if TYPE_CHECKING:
    from datetime import datetime

    from ..inbound.queues.consumer import Consumer
    from ..reconcile.rebuild import Rebuilt
    from ..reconcile.rebuild_plan import RebuildPlan, RebuildTarget
    from ..reconcile.reconciliation import Reconciliation

__all__ = ["NEW_LEDGER", "App"]


ledgers = logging.getLogger("twiceproof.ledger")
NEW_LEDGER = "this is a new ledger: %s; if there was one already, name it by its whole path"


class App(Declarations, Triggers, InFlow, Messaging, Reconciliations, Administration):
    """A ledger and everything that is declared on it. `App()` keeps it in the SQLite file twiceproof.db.

    Args:
        store: The ledger's URL ("postgresql://…"), or an open store; by default TWICEPROOF_STORE. The relative path of
            a SQLite file begins at the directory of the file that makes the app; in a REPL, at the current directory.
        tenant: Whose claims and runs these are; by default TWICEPROOF_TENANT, or "default".
        best_effort: Accept a store that can lose acknowledged writes on failover, also for work that must never be
            repeated blindly.
        url: Where callbacks reach this app from outside; by default TWICEPROOF_URL.
        resources: Where large values are kept; by default TWICEPROOF_RESOURCES, or the store.
        keys: Encryption keys for stored values; by default TWICEPROOF_KEYS.
        clock: The source of time; tests pass their own.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        tenant: str | None = None,
        best_effort: bool = False,
        url: str | None = None,
        resources: str | None = None,
        keys: str | Keyring | None = None,
        clock: Clock = system_clock,
    ) -> None:
        found = from_environment(os.environ)
        url_as_given = found.store if store is None else store if isinstance(store, str) else ""
        ledger = anchored(url_as_given, _directory_of(sys._getframe(1).f_globals.get("__file__")))
        self.settings = Settings(
            store=ledger if _is_elsewhere(url_as_given, ledger) else url_as_given,
            tenant=found.tenant if tenant is None else tenant,
            best_effort=best_effort,
            url=found.url if url is None else url,
            resources=found.resources if resources is None else resources,
        )
        _refuse_uncallable(self.settings.url)
        self.clock = clock
        new_file = _absent(ledger) if ledger != url_as_given else None
        self.store: Store = _opened(store, ledger, found.keys if keys is None else keys, clock)
        self.new_ledger = new_file  # its path was inferred: from a wrong one, all work would be repeated
        if new_file is not None:
            ledgers.warning(NEW_LEDGER, new_file)
        blobs = open_blob_store(self.settings.resources) if self.settings.resources else None
        self.claims = ClaimManager(self.store, clock=clock, blobs=blobs)
        was_explicit = isinstance(store, str) or self.settings.store != url_as_given
        self._where = store_words(self.settings.store) if was_explicit else ()
        self._start_housekeeping()
        self._declare_nothing()
        self._wire()

    def _start_housekeeping(self) -> None:
        self._owner = Ids(_process_name)
        self._key_watch = KeyWatch()
        self.tally = DuplicateCounter(self.store, self.claims.duplicates, ids=self._owner)
        every = self.settings.sweep_every
        self._housekeeper = Sweeper(self.store, clock=self.clock, every=every, also=(park_unfinished,))
        self._heartbeat = Heartbeat(self.claims.renew, clock=self.clock, chore=self._housekeeper.sweep_if_due)
        self.incidents: list[Incidents] = []

    def _declare_nothing(self) -> None:
        """What is declared on the app later."""
        self.operations: dict[str, Once] = {}
        self.flows: MutableMapping[str, Flow] = {}
        self.steps: list[Step] = []
        self.transactions: list[Step] = []
        self.hooks: MutableMapping[str, Hook] = {}
        self.consumers: MutableMapping[str, Consumer] = {}
        self.reconciliations: dict[str, Reconciliation] = {}

    def _wire(self) -> None:
        """The shared services of flows, and the kinds of due work that workers carry out."""
        self.tenants = Tenants(self.store, self.settings.tenant, self.clock)
        self._views: dict[str, App] = {}
        self.runtime = Runtime(
            self.claims,
            self._heartbeat,
            owner=self._owner,
            tenant=self.settings.tenant,
            where=self._where,
            best_effort=self.settings.best_effort,
            url=self.settings.url,
        )
        self.runtime.report_several = self._report_several
        self.runtime.app = self
        self.schedules = DueSchedules(self.store)
        self.polls = DuePolls(self.store, self._heartbeat)
        ranks = [DueRuns(self.store, self.flows, self.tenants.known, rank) for rank in (HIGH, NORMAL, LOW)]
        self.due_work: list[DueWork] = [self.schedules, self.polls, *ranks]

    def _report_several(self, space: str, step: str, found: Sequence[str], *, goes_on: bool) -> Operation[None]:
        from ..reconcile.looking import report_several

        return report_several(self.store, space, step, found, goes_on=goes_on)

    # -- the ledger from the source of truth -----------------------------------------------------

    def rebuild(
        self,
        operation: Any,
        rows: Iterable[Mapping[str, Any]],
        *,
        key: str,
        result: Callable[[Mapping[str, Any]], Any] | None = None,
        steps: Mapping[str, Callable[[Mapping[str, Any]], Any]] | None = None,
        whole: bool = True,
        as_of: datetime | None = None,
    ) -> RebuildPlan:
        """Compare the source of truth with the ledger, and return a plan. Nothing is written.

        Args:
            operation: The flow or guarded function, or its name.
            rows: What the source has: mappings, such as the rows of an export.
            key: A template over a row, as for the operation's own key: "order:{reference}".
            result: Makes the operation's result from a row. Needed for a guarded function.
            steps: For a flow: by a step's name, what makes its result from a row.
            whole: Whether the rows are all that the source has. If not, nothing is called missing.
            as_of: When reading them began. Without it, the plan settles nothing as not having happened.
        """
        from ..reconcile.rebuild_plan import plan_rebuild

        target = self._rebuild_target(operation)
        return block(
            plan_rebuild(self.store, target, rows, key=key, result=result, steps=steps, whole=whole, as_of=as_of)
        )

    def apply_rebuild(
        self,
        plan: RebuildPlan | str | Path,
        *,
        settle_absent: int = 0,
        fresh: RebuildPlan | str | Path | None = None,
        changed: int = 0,
    ) -> Rebuilt:
        """Apply a plan: record what the ledger lacks, settle what was unknown, keep contradictions as evidence.

        No recorded result is changed, and what is under way is left alone. Applied twice, it writes nothing more.

        Args:
            plan: A plan, or the file that it was saved to.
            settle_absent: How many unknown outcomes may be settled as not having happened, because the source lacks
                them; by default none. With more of them in the plan, nothing is applied.
            fresh: A second plan, made just now: keys about which the source has changed since are skipped.
            changed: How many keys may be skipped so. With more of them, nothing is applied.
        """
        from ..reconcile.rebuild import apply_rebuild
        from ..reconcile.rebuild_plan import RebuildPlan, read_plan

        found = plan if isinstance(plan, RebuildPlan) else read_plan(plan)
        again = read_plan(fresh) if isinstance(fresh, str | Path) else fresh
        target = self._rebuild_target(found.head.operation)
        return block(apply_rebuild(self.store, self.claims, target, found, settle_absent, again, changed))

    def _rebuild_target(self, operation: Any) -> RebuildTarget:
        from ..reconcile.rebuild import target_of

        return target_of(operation, self.settings.tenant, self.flows, self.operations, self.steps)

    # -- claims ----------------------------------------------------------------------------------

    def claim(
        self,
        operation: str,
        key: str,
        *,
        payload: Any = UNSET,
        on_duplicate: OnDuplicate = "reject",
        keep: Duration = DEFAULT_KEEP,
        lease: Duration = DEFAULT_LEASE,
        repeat: Repeat = "never",
        on_failure: OnFailure = "keep",
        owner: str | None = None,
        link: str = "",
        tenant: str | None = None,
        stable: bool = False,
        not_done: NotDoneErrors = (),
    ) -> ClaimBlock:
        """Guard a few lines: `with app.claim("ship", "order:17") as claim: …`, or `async with`.

        Args:
            operation: What the lines do; part of the claim's address.
            key: The key of the event.
            payload: Data that must be equal in repeated claims; different data raises `PayloadMismatch`. Left out,
                nothing is compared.
            on_duplicate: "reject" raises `Duplicate`, which carries the earlier result. With "return_prior" and "wait"
                the block runs, and must look at `claim.held`.
            keep: How long the key is known after the work has ended.
            lease: How long a process that died keeps its claim. A living one renews it.
            repeat: What the death of a process means, or an error that does not tell whether the work was done: "never"
                parks the claim for review, "safe" runs the work again.
            on_failure: Whether a failure is recorded ("keep") or the key given back ("release").
            owner: A name that stays the same over restarts, and may enter again what it holds.
            link: A second name of the claim, shown in lists.
            tenant: Whose claim it is, if not this app's.
            stable: The key stays on every retry, although it looks like a time or a random id.
            not_done: Exceptions by which the block says that nothing was done.
        """
        policy = make_policy(
            operation,
            tenant=self.runtime.tenant if tenant is None else tenant,
            on_duplicate=on_duplicate,
            on_failure=on_failure,
            repeat=repeat,
            lease=lease,
            keep=keep,
            not_done=not_done,
        )
        valid = validate_key(key)
        if not stable:
            self._key_watch.look(operation, valid, self.clock.now(), say="stable=True", stacklevel=2)
        at = address_of(policy.tenant, policy.operation, valid)
        asked = "" if payload is UNSET else fingerprint({"payload": payload})
        request = ClaimRequest(
            at=at,
            operation=policy.operation,
            key=valid,
            owner=self.runtime.owner() if owner is None else validate_key(owner),
            lease=policy.lease,
            tenant=policy.tenant,
            fingerprint=asked,
            run=run_id(at.space),
            link=link and validate_key(link),
            repeat=policy.repeat,
            where=self.runtime.where,
            reentrant=owner is not None,
            inline=True,
        )
        return ClaimBlock(self._guard(policy), request)

    def settle(
        self, operation: str, key: str, verdict: SettleVerdict, *, by: str, result: Any = None, note: str = ""
    ) -> TakeOutcome:
        """End the review of a claim, and return what the claim is then.

        Args:
            operation: The operation's name.
            key: The key of the event.
            verdict: "happened", "did-not-happen" (it may be run again), or "abandon".
            by: Who decided.
            result: The result, if it happened.
            note: A remark that is kept with it.
        """
        known = self.operations.get(operation)
        life = known.policy.life if known else Lifetime(keep=None, keep_failed=None)
        word = Settlement(verdict, by, self.clock.now(), note)
        at = address_of(self.runtime.tenant, operation, validate_key(key))
        kept = encode_given_result(result) if verdict == "happened" else NO_RESULT
        return block(self.runtime.claims.settle(at, word, result=kept, life=life, where=self.runtime.where))

    # -- tenants ---------------------------------------------------------------------------------

    def of(self, tenant: str) -> App:
        """Return this app for another tenant: the same store, flows and webhooks; claims and runs of its own.

        Args:
            tenant: The tenant's name.
        """
        if tenant == self.settings.tenant:
            return self
        view = self._views.get(tenant)
        if view is None:
            view = copy.copy(self)
            view.settings = structs.replace(self.settings, tenant=validate_name("tenant", tenant))
            view.runtime = self.runtime.of(tenant)
            view.flows = OfTenant(self.flows, tenant)
            view.hooks, view.consumers = SharedDeclarations(self.hooks), SharedDeclarations(self.consumers)
            self._views[tenant] = view
            self.tenants.add(tenant)
        return view

    # -- life ------------------------------------------------------------------------------------

    def sweep_if_due(self) -> None:
        """Remove expired records and park abandoned claims on a background thread, if it is time to."""
        self._housekeeper.sweep_if_due()

    def close(self) -> None:
        """Finish what is under way and close the store. Later calls are refused."""
        self.runtime.flusher.stop()
        self.tally.stop()
        for incidents in self.incidents:
            incidents.stop()
        self._heartbeat.stop()
        self._housekeeper.stop()
        self._stop_messaging()
        self.store.close()

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _directory_of(file: str | None) -> Path:
    """Return the directory of the file that makes the app; the current one in a REPL and in an archive."""
    directory = Path(file).absolute().parent if file else Path()
    return directory if directory.is_dir() else Path()


def _absent(url: str) -> Path | None:
    """Return the SQLite file that opening this URL would create, if any."""
    path = sqlite_file(url)
    return path if path is not None and not path.exists() else None


def _is_elsewhere(url_as_given: str, ledger: str) -> bool:
    """Return whether the URL as given leads to another file from the current directory."""
    if ledger == url_as_given:
        return False
    try:
        return ledger != anchored(url_as_given, Path.cwd())
    except OSError:  # it was removed
        return True


def _opened(store: str | Store | None, url: str, keys: str | Keyring, clock: Clock) -> Store:
    """Open the store of a URL. An open store is used as it is, with the keys it was opened with."""
    if store is None or isinstance(store, str):
        return open_store(url, clock=clock, keys=keys)
    if not hasattr(store, "batch_limit"):
        raise Misuse(f'{store!r:.80} is neither a URL nor a store; write it like App("sqlite:///shop.db").')
    return store


def _refuse_uncallable(url: str) -> None:
    """Refuse a URL that cannot be called, now: later, the first run that makes a callback URL would fail."""
    if url and not url.startswith(("http://", "https://")):
        raise Misuse(f"url={url!r} cannot be called from outside; write it like https://hooks.example.com")


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:"
