"""What every run of an app shares."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..claims.claims import Claims
from ..claims.heartbeat import Heartbeat
from ..clock import Clock, Ids
from .courier import Courier
from .verdicts import Verdicts

__all__ = ["Parts"]


class Parts:
    """Plain holder: claims and their heartbeat, the courier, what errors mean, the clock and the dice."""

    def __init__(
        self,
        claims: Claims,
        heartbeat: Heartbeat,
        *,
        owner: Ids,
        tenant: str,
        where: str = "",
        url: str = "",
        best_effort: bool = False,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.claims = claims
        self.store = claims.store
        self.clock: Clock = claims.clock
        self.heartbeat = heartbeat
        self.owner = owner
        self.tenant = tenant
        self.where = where
        self.url = url  # where callbacks reach this app
        self.best_effort = best_effort
        self.roll = roll
        self.courier = Courier()
        self.verdicts = Verdicts()
        self.draining = False  # this process is about to stop: no step is begun
