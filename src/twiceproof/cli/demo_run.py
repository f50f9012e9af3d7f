"""Runs the demo: hands out deliveries, kills on schedule, settles what is unknown by asking the outside world."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

from .. import App
from ..clock import Clock, system_clock
from .demo_crew import Crew, Member
from .demo_plan import Plan
from .demo_worker import OPERATION, Answer, Delivery
from .demo_world import Parcel, World

__all__ = ["Run"]

Verdict = Literal["happened", "did-not-happen"]


class Run:
    """A queue that delivers at least once, as real ones do: whatever was not answered comes again."""

    def __init__(self, app: App, crew: Crew, world: World, plan: Plan, *, clock: Clock = system_clock) -> None:
        self.app = app
        self.crew = crew
        self.world = world
        self.kills = dict(plan.kills)
        self.queue = deque(plan.deliveries)
        self.later: list[tuple[float, int]] = []
        self.clock = clock
        self.delivered = 0
        self.answers: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.settled: dict[int, str] = {}
        self.parcels: list[Parcel] = []  # every parcel that any delivery was answered with
        self._handlers: dict[str, Callable[[Member, Delivery, Answer], None]] = {
            "stopped": self._kill,
            "in_progress": self._deliver_later,
            "review": self._settle,
            "lost": self._deliver_again,
            "done": self._accept,
            "replayed": self._accept,
        }

    def step(self) -> bool:
        """Give out what can be given, hear what is said. False: there is nothing left to do."""
        self._wake()
        for member in self.crew.idle():
            if self.queue:
                self._give(member, self.queue.popleft())
        if not self.later and all(member.delivery is None for member in self.crew.members):
            return False
        for member, answer in self.crew.hear(self._time_to_wait()):
            self._take(member, answer)
        return True

    @property
    def open(self) -> int:
        return len(self.queue) + len(self.later)

    def _give(self, member: Member, order: int) -> None:
        self.delivered += 1
        member.give(Delivery(self.delivered, order, self.kills.get(order, "")))

    def _take(self, member: Member, answer: Answer) -> None:
        delivery, member.delivery = member.delivery, None
        if delivery is not None:
            self.answers[answer.answer] += 1
            self._handlers[answer.answer](member, delivery, answer)

    # -- time ------------------------------------------------------------------------------------

    def _wake(self) -> None:
        while self.later and self.later[0][0] <= self.clock.monotonic():
            self.queue.append(heapq.heappop(self.later)[1])

    def _time_to_wait(self) -> float | None:
        return max(0.0, self.later[0][0] - self.clock.monotonic()) if self.later else None

    # -- what an answer means --------------------------------------------------------------------

    def _accept(self, member: Member, delivery: Delivery, answer: Answer) -> None:
        if answer.parcel is not None:
            self.parcels.append(answer.parcel)

    def _deliver_again(self, member: Member, delivery: Delivery, answer: Answer) -> None:
        self.queue.append(delivery.order)

    def _deliver_later(self, member: Member, delivery: Delivery, answer: Answer) -> None:
        heapq.heappush(self.later, (self.clock.monotonic() + answer.retry_after, delivery.order))

    def _kill(self, member: Member, delivery: Delivery, answer: Answer) -> None:
        """Nobody answered this delivery, so the queue delivers it again."""
        self.kills.pop(delivery.order, None)  # two deliveries of one order may both have been told where to stop
        self.killed[delivery.stop_at] += 1
        self.crew.replace(member)
        self.queue.append(delivery.order)

    def _settle(self, member: Member, delivery: Delivery, answer: Answer) -> None:
        """The ledger does not know whether it happened. A person asks the carrier, and says so."""
        if delivery.order not in self.settled:
            self.settled[delivery.order] = self._ask_the_world(delivery.order)
        self.queue.append(delivery.order)

    def _ask_the_world(self, order: int) -> Verdict:
        parcel = self.world.find(order)
        verdict: Verdict = "did-not-happen" if parcel is None else "happened"
        self.app.settle(OPERATION, f"order:{order}", verdict, by="demo", result=parcel, note="asked the carrier")
        return verdict
