"""The senders that end a run's waits: they deliver callbacks and decide approvals, sometimes twice, early or late."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...errors import NoSuchWait, OwnRequest, Waiting
from ...operations import block
from ..target import ProofTarget
from ..worlds.ssh import never_started
from .process import Process, process_var
from .scenario import Awaited, Scenario

__all__ = ["Senders"]


UNSURE = "from a start of unknown outcome"
APPROVER, SECOND, THIRD = "ann", "bob", "cara"


class Senders:
    """`arrivals` counts what the ledger accepted as the first of its name: it must be one, whatever is sent."""

    def __init__(self, target: ProofTarget, scenario: Scenario, whose: Callable[[], Process]) -> None:
        self._target = target
        self._scenario = scenario
        self._whose = whose
        self.arrivals: Counter[str] = Counter()
        self.awaited: dict[str, Awaited] = {}
        self._was_missed = False  # the run waited for a sender that did not come
        self._ids: dict[str, str] = {}  # of approvals, by name

    def meet(self, waiting: Waiting) -> bool:
        """Send what the run waits for. False: nothing is sent, and the wait must time out."""
        names = [name for name in self._target.callbacks if _waits_for(name, waiting.why)]
        names += [one.name for one in self._open_approvals()]
        for name in names:
            is_approval = name not in self._target.callbacks
            self.awaited[name] = Awaited(name, is_approval, waiting.until is not None)
        present = [name for name in names if not self._is_absent(name) and not _is_nobody_there(waiting.why)]
        self._was_missed = self._was_missed or present != names
        for name in present:
            self._send(name)
        return bool(present)

    def come_early(self) -> None:
        """Send before the run waits: as soon as the run exists."""
        if self._scenario.arrival == "early":
            self._start()
            self._deliver(self._scenario.arrives, fired=1)

    def come_late(self) -> None:
        """Send when the run is at rest: repeats, and deliveries that nothing waits for any more."""
        name = self._scenario.arrives
        if self._scenario.arrival in ("twice", "late"):
            self._deliver(name, fired=1)
        if self._scenario.arrival == "raced":
            self._decide(name, by=THIRD, approved=not self._is_approved(name), fired=1)
        if self._scenario.arrival == "never" and self._was_missed:
            self._whose().tell(f"{name} has not come", fired=1)

    # -- sending ---------------------------------------------------------------------------------

    def _is_absent(self, name: str) -> bool:
        return self._scenario.arrives == name and self._scenario.arrival in ("late", "never")

    def _send(self, name: str) -> None:
        """Send again if a process died during the first delivery: the sender does not know the outcome either."""
        if name in self._target.callbacks:
            for _ in range(2 if (self._scenario.arrives, self._scenario.arrival) == (name, "twice") else 1):
                self._deliver(name)
        elif (self._scenario.arrives, self._scenario.arrival) == (name, "raced"):
            self._race(name)
        else:
            self._decide(name)

    def _deliver(self, name: str, fired: int = 0) -> None:
        flow = self._target.flow
        key = flow.key(self._target.args, self._target.kwargs)
        payload = self._target.callbacks[name]
        try:
            told = self._target.app.deliver_to(flow=flow.name, key=key, name=name, payload=payload)
        except NoSuchWait:
            return
        self._count(name, told.first, f"{name} is delivered", fired)

    def _race(self, name: str) -> None:
        """Two deciders have seen the request; one of them is first."""
        process = self._whose()

        def decide(by: str) -> None:
            process_var.set(process)
            self._decide(name, by=by)

        both = [threading.Thread(target=decide, args=(by,), name=f"twiceproof-{by}") for by in (APPROVER, SECOND)]
        for one in both:
            one.start()
        for one in both:
            one.join()

    def _is_approved(self, name: str) -> bool:
        return name not in self._target.reject

    def _decide(self, name: str, *, by: str = APPROVER, approved: bool | None = None, fired: int = 0) -> None:
        approved = self._is_approved(name) if approved is None else approved
        try:
            told = self._target.app.decide(self._ids.get(name, ""), approved, by=by)
        except (NoSuchWait, OwnRequest):
            return
        self._count(name, told.first, f"{by} says {'yes' if approved else 'no'} to {name}", fired)

    def _count(self, name: str, first: bool, what: str, fired: int) -> None:
        self._whose().tell(what if first else f"{what}, and is told that it does not count", fired=fired)
        self.arrivals[f"{name} counted"] += first

    # -- what there is ---------------------------------------------------------------------------

    def _open_approvals(self) -> list[Any]:
        decided = (*self._target.approve, *self._target.reject)
        if not decided:
            return []
        found = [one for one in self._target.app.approvals(flow=self._target.flow.name) if one.state == "open"]
        wanted = [one for one in found if one.name in decided]
        self._ids.update({one.name: one.id for one in wanted})
        return wanted

    def _start(self) -> None:
        block(self._target.flow.start(self._target.args, self._target.kwargs))


def _is_nobody_there(why: str) -> bool:
    """A job that was cut off before it started sends no callback."""
    return UNSURE in why and never_started()


def _waits_for(name: str, why: str) -> bool:
    return re.search(rf"waits for {re.escape(name)}(?![^\s,;])", why) is not None
