"""What an app offers about runs that were: look, settle, try again, fork, and ids both ways."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import Any

from ...claims.claim import NO_RESULT, REVIEW
from ...claims.results import said
from ...drive import block
from ...errors import Misuse
from ...records import Address
from ..flow import Flow
from ..ids import IdLink, ids_of, runs_behind
from ..parts import Parts
from ..tenancy import own_run
from .again import retry_run
from .fork import Forked, fork_run
from .review import Settled, Verdict, Word, settle_run
from .run_shape import RunShape, WholeRun
from .runs import ALL, EVERY_STATE, Filter, address_of_run, list_runs, look_at_run

__all__ = ["HistoryApi"]

NOTHING: Any = object()  # as opposed to the result None


class HistoryApi:
    """The part of an app that is about runs that were. A run is named by its id, or as "flow/key"."""

    parts: Parts
    flows: MutableMapping[str, Flow]

    def runs(
        self,
        *,
        flow: str = "",
        state: str = "",
        key: str = "",
        prefix: str = "",
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
    ) -> list[RunShape]:
        """Runs, those in review first; of every `state` unless one is named.

        `since` and `until` are the store's times, in seconds since 1970.
        """
        if state and state not in (*EVERY_STATE, ALL):
            raise Misuse(f"{state!r} is no state of a run; say one of {', '.join(EVERY_STATE)}, or {ALL}.")
        which = Filter(self.parts.tenant, flow, key, prefix, since, until)
        states = EVERY_STATE if state in ("", ALL) else (state,)
        return list(block(list_runs(self.parts.store, which, states, limit=limit)).runs)

    def history(self, run: str) -> WholeRun:
        """Everything about one run: its steps, what late holders reported, and the next move."""
        return block(look_at_run(self.parts.store, self._place(run)))

    def review(
        self, *, flow: str = "", since: float | None = None, until: float | None = None, limit: int = 1_000
    ) -> list[RunShape]:
        """Runs that wait for a person."""
        return self.runs(flow=flow, state=REVIEW, since=since, until=until, limit=limit)

    def settle_run(
        self,
        run: str,
        verdict: Verdict,
        *,
        by: str,
        step: str = "",
        result: Any = NOTHING,
        evidence: str = "",
        did: bool | None = None,
        note: str = "",
    ) -> Settled:
        """A person's word about a run in review: "happened" (with the step's result, or a piece of evidence adopted
        as such), "did-not-happen", "retry" (what stopped it is repaired), "undo" (with `did=` where an outcome is
        unknown), or "abandon"."""
        kept = NO_RESULT if result is NOTHING else said(result)
        at = self._place(run)
        word = Word(verdict, by, note, step, kept, evidence, did)
        return block(settle_run(self.parts.store, at, word, life=self.parts.life_of(at), where=self.parts.where))

    def retry_run(self, run: str) -> str:
        """Queue a run that failed, or whose flow had changed under it: what is done stays done."""
        return block(retry_run(self.parts.store, self._place(run), self.parts.where))

    def fork_run(self, run: str, *, key: str, from_step: str = "") -> Forked:
        """Start the same input under a new key, as something new; with `from_step`, what came before is kept."""
        return block(fork_run(self.parts.store, self._place(run), key, from_step))

    def ids(self, name: str) -> list[IdLink]:
        """From a run, or the key of one, to the ids that its steps got outside; or from such an id back to runs."""
        store, tenant = self.parts.store, self.parts.tenant
        links = block(runs_behind(store, tenant, name))
        with contextlib.suppress(Misuse):  # the outside's ids may look like a run's, and be none
            links += block(ids_of(store, self._place(name)))
        for flow in self.flows:
            links += block(ids_of(store, address_of_run(tenant, f"{flow}/{name}")))
        return list(dict.fromkeys(links))

    def _place(self, run: str) -> Address:
        return own_run(self.parts.tenant, address_of_run(self.parts.tenant, run))
