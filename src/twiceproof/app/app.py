"""The app: opens the store, wires the parts, closes them. The only file that knows everyone."""

from __future__ import annotations

import copy
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from msgspec import UNSET, structs

from ..claims.blobs import open_blob_store
from ..claims.claim import NO_RESULT, Settlement, TakeOutcome, address_of, run_id, validate_name
from ..claims.duplicates import DuplicateCounter
from ..claims.error_classification import NotDoneErrors
from ..claims.guard import Guard
from ..claims.held_claim import Heartbeat
from ..claims.manager import ClaimManager
from ..claims.once import ClaimBlock, Link, Once, OnceDecorator
from ..claims.policy import (
    DEFAULT_KEEP,
    DEFAULT_LEASE,
    Duration,
    OnDuplicate,
    OnFailure,
    OnLarge,
    Policy,
    Repeat,
    SettleVerdict,
    make_policy,
)
from ..claims.request import operation_name, refuse_bare
from ..claims.results import encode_given_result
from ..claims.retention import Sweeper, park_unfinished
from ..claims.states import ClaimRequest, Lifetime
from ..clock import Clock, Ids, system_clock
from ..effects.incidents import Incidents
from ..errors import Misuse
from ..flows.engine.guarded_calls import guard_function
from ..flows.flow import HIGH, LOW, NORMAL, Flow
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..flows.triggers.poll import DuePolls
from ..flows.triggers.schedule import DueSchedules
from ..flows.workers.due_work import DueRuns, DueWork
from ..flows.workers.tenants import OfTenant, Tenants
from ..inbound.hook import Hook
from ..keys import KeyWatch, fingerprint, validate_key
from ..operations import block
from ..safe_text import store_words
from ..settings import Settings, from_environment
from ..stores.base import Store
from ..stores.encryption import Keyring
from ..stores.open import anchored, open_store, sqlite_file
from .administration import DuplicatesApi, HistoryApi, WorkApi
from .declarations import FlowApi, TransactionApi
from .in_flow import BatchApi, ResourceApi, WaitApi
from .triggers import DoorApi, TriggerApi

__all__ = ["NEW_LEDGER", "App"]


ledgers = logging.getLogger("twiceproof.ledger")
NEW_LEDGER = "this is a new ledger: %s; if there was one already, name it by its whole path"

P = ParamSpec("P")
R = TypeVar("R")


class App(
    FlowApi, TriggerApi, WorkApi, WaitApi, HistoryApi, DuplicatesApi, BatchApi, ResourceApi, TransactionApi, DoorApi
):
    """`App()` keeps its ledger in twiceproof.db; `App("postgresql://…")` or TWICEPROOF_STORE moves it elsewhere.

    The path of a SQLite file that is relative is taken from the directory of the file that makes the app, whatever the
    current directory is; in a REPL, from the current directory.
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
        written = found.store if store is None else store if isinstance(store, str) else ""
        ledger = anchored(written, _directory_of(sys._getframe(1).f_globals.get("__file__")))
        self.settings = Settings(
            store=ledger if _is_elsewhere(written, ledger) else written,
            tenant=found.tenant if tenant is None else tenant,
            best_effort=best_effort,
            url=found.url if url is None else url,
            resources=found.resources if resources is None else resources,
        )
        _refuse_uncallable(self.settings.url)
        self.clock = clock
        made = _absent(ledger) if ledger != written else None
        self.store: Store = _opened(store, ledger, found.keys if keys is None else keys, clock)
        self.new_ledger = made  # where it is was worked out, so it may be one too many: everything would be done again
        if made is not None:
            ledgers.warning(NEW_LEDGER, made)
        shelf = open_blob_store(self.settings.resources) if self.settings.resources else None
        self.claims = ClaimManager(self.store, clock=clock, shelf=shelf)
        self.operations: dict[str, Once] = {}
        told = isinstance(store, str) or self.settings.store != written
        self._where = store_words(self.settings.store) if told else ()
        self._owner = Ids(_process_name)
        self._key_watch = KeyWatch()
        self.tally = DuplicateCounter(self.store, self.claims.duplicates, ids=self._owner)
        every = self.settings.sweep_every
        self._housekeeper = Sweeper(self.store, clock=clock, every=every, also=(park_unfinished,))
        self._heartbeat = Heartbeat(self.claims.renew, clock=clock, chore=self._housekeeper.sweep_if_due)
        self.flows: MutableMapping[str, Flow] = {}
        self.steps: list[Step] = []
        self.hooks: MutableMapping[str, Hook] = {}
        self.tenants = Tenants(self.store, self.settings.tenant, clock)
        self._views: dict[str, App] = {}
        self.parts = Runtime(
            self.claims,
            self._heartbeat,
            owner=self._owner,
            tenant=self.settings.tenant,
            where=self._where,
            best_effort=best_effort,
            url=self.settings.url,
        )
        self.schedules = DueSchedules(self.store)
        self.polls = DuePolls(self.store, self._heartbeat)
        ranks = (HIGH, NORMAL, LOW)
        self.duties: list[DueWork] = [DueRuns(self.store, self.flows, self.tenants.known, rank) for rank in ranks]
        self.incidents: list[Incidents] = []

    # -- guarding --------------------------------------------------------------------------------

    def once(
        self,
        key: str | Callable[..., str],
        *,
        name: str | None = None,
        on_duplicate: OnDuplicate = "return_prior",
        keep: Duration = DEFAULT_KEEP,
        keep_result: Duration | None = None,
        keep_failed: Duration | None = None,
        lease: Duration = DEFAULT_LEASE,
        repeat: Repeat = "never",
        on_failure: OnFailure = "keep",
        large: OnLarge = "spill",
        ignore: Collection[str] = (),
        stable: Collection[str] = (),
        link: Link = None,
        not_done: NotDoneErrors = (),
    ) -> OnceDecorator:
        """Guard a function: of all calls with one key, one does the work, and the others get its result.

        `key` is a template over the arguments (`"shop:order:{order[id]}"`) or a function of them. `repeat` says
        what a holder's death means, or an error that does not tell whether the work was done: "never" (the default)
        parks the claim for review, "safe" runs the work again. `not_done` names the exceptions by which this function
        says that nothing was done.
        """
        refuse_bare(key, "once")

        def guard(function: Callable[..., Any]) -> Any:
            called = operation_name(function, name, "once")
            if not callable(function):  # `@app.once` without parentheses took the function for its key
                raise Misuse('@app.once needs a key; write it as @app.once(key="order:{order[id]}").')
            policy = make_policy(
                called,
                tenant=self.settings.tenant,
                on_duplicate=on_duplicate,
                on_failure=on_failure,
                repeat=repeat,
                large=large,
                lease=lease,
                keep=keep,
                keep_result=keep_result,
                keep_failed=keep_failed,
                ignore=ignore,
                where=self._where,
                not_done=not_done,
            )
            once = Once(function, self._guard(policy), key=key, owner=self._owner, stable=stable, link=link)
            self._register(once)
            return guard_function(function, once, self.parts)

        return guard

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
        """A claim around a few lines: `with app.claim("ship", "order:17") as claim: …`, or `async with`.

        A duplicate raises `Duplicate`, which carries the earlier result: a block cannot be skipped. With
        `on_duplicate="return_prior"` the block runs, and must ask `if claim.held:`. Another `payload` under the same
        key raises `PayloadMismatch`, None too; left out, nothing is compared. An `owner` that stays the same
        over restarts may enter again what it holds. `stable` says that the key stays on every retry, although it looks
        like a time or a random id. `not_done` names the exceptions by which the block says that nothing was done.
        """
        policy = make_policy(
            operation,
            tenant=self.parts.tenant if tenant is None else tenant,
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
            owner=self._owner() if owner is None else validate_key(owner),
            lease=policy.lease,
            tenant=policy.tenant,
            fingerprint=asked,
            run=run_id(at.space),
            link=link and validate_key(link),
            repeat=policy.repeat,
            where=self._where,
            reentrant=owner is not None,
            inline=True,
        )
        return ClaimBlock(self._guard(policy), request)

    def settle(
        self, operation: str, key: str, verdict: SettleVerdict, *, by: str, result: Any = None, note: str = ""
    ) -> TakeOutcome:
        """End a review by a person's word: "happened" (with its result), "did-not-happen", or "abandon"."""
        known = self.operations.get(operation)
        life = known.policy.life if known else Lifetime(keep=None, keep_failed=None)
        word = Settlement(verdict, by, self.clock.now(), note)
        at = address_of(self.parts.tenant, operation, validate_key(key))
        kept = encode_given_result(result) if verdict == "happened" else NO_RESULT
        return block(self.claims.settle(at, word, result=kept, life=life, where=self._where))

    def _guard(self, policy: Policy) -> Guard:
        return Guard(self.claims, self._heartbeat, policy, self.parts.verdicts, best_effort=self.settings.best_effort)

    def _register(self, once: Once) -> None:
        self._refuse_namesake(once.policy.operation, once.function)
        self.operations[once.policy.operation] = once

    def _register_flow(self, flow: Flow) -> None:
        self._refuse_namesake(flow.name, flow.function)
        self.flows[flow.name] = flow
        self.parts.lives[flow.name] = flow.policy.life

    def _refuse_namesake(self, name: str, function: Callable[..., Any]) -> None:
        """Two under one name, guarded functions or flows, would share claims and answer each other's duplicates."""
        known: Once | Flow | None = self.flows.get(name) or self.operations.get(name)
        if known is not None and _place(known.function) != _place(function):
            raise Misuse(
                f'{_place(known.function)} and {_place(function)} are both called "{name}"; give one of them another '
                "name=."
            )

    # -- tenants ---------------------------------------------------------------------------------

    def of(self, tenant: str) -> App:
        """This app as another tenant has it: the same store, flows and webhooks; claims and runs of its own."""
        if tenant == self.settings.tenant:
            return self
        view = self._views.get(tenant)
        if view is None:
            view = copy.copy(self)
            view.settings = structs.replace(self.settings, tenant=validate_name("tenant", tenant))
            view.parts = self.parts.of(tenant)
            view.flows, view.hooks = OfTenant(self.flows, tenant), OfTenant(self.hooks, tenant)
            self._views[tenant] = view
            self.tenants.add(tenant)
        return view

    # -- life ------------------------------------------------------------------------------------

    def sweep_if_due(self) -> None:
        """Asked now and then: forget what may be forgotten, and park what nobody ended, on a thread of its own."""
        self._housekeeper.sweep_if_due()

    def close(self) -> None:
        """Finish what is under way. What is called afterwards is refused."""
        self.parts.flusher.stop()
        self.tally.stop()
        for incidents in self.incidents:
            incidents.stop()
        self._heartbeat.stop()
        self._housekeeper.stop()
        self.store.close()

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _directory_of(file: str | None) -> Path:
    """Of the file that makes the app; the current one in a REPL, where there is no file, and in an archive."""
    directory = Path(file).absolute().parent if file else Path()
    return directory if directory.is_dir() else Path()


def _absent(url: str) -> Path | None:
    """The file that is about to be made."""
    path = sqlite_file(url)
    return path if path is not None and not path.exists() else None


def _is_elsewhere(written: str, ledger: str) -> bool:
    """Whether the URL as it is written would lead somebody in the current directory to another file."""
    if ledger == written:
        return False
    try:
        return ledger != anchored(written, Path.cwd())
    except OSError:  # it was removed
        return True


def _opened(store: str | Store | None, url: str, keys: str | Keyring, clock: Clock) -> Store:
    """A store that is handed in is taken as it is: who opens it says with which keys."""
    if store is None or isinstance(store, str):
        return open_store(url, clock=clock, keys=keys)
    if not hasattr(store, "batch_limit"):
        raise Misuse(f'{store!r:.80} is neither a URL nor a store; write it like App("sqlite:///shop.db").')
    return store


def _refuse_uncallable(url: str) -> None:
    """Here, and not in the first run that hands out a callback: that run would fail."""
    if url and not url.startswith(("http://", "https://")):
        raise Misuse(f"url={url!r} cannot be called from outside; write it like https://hooks.example.com")


def _place(function: Callable[..., Any]) -> str:
    """Where it is written: what comes from there again is the same, loaded anew. An object has no such place."""
    named = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{named}" if named else f"{type(function).__qualname__} at {id(function):#x}"


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:"
