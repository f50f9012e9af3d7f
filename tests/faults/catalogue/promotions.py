"""Two Valkey servers behind one address: the replica is promoted, and what it had not received is gone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from tests.faults.catalogue.writers import Work, receipt
from tests.servers import FaultProxy, ValkeyServer
from tests.servers.replicas import follow, promote
from twiceproof import App, StoreUnavailable, StoreUnsafe
from twiceproof.claims.claim import address_of
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis.engine import RedisEngine

__all__ = ["Promotions"]

PATIENCE = 1.0


class Promotions:
    """Each turn ends with the roles exchanged. `strict=False` takes the protection away."""

    def __init__(self, dice: random.Random, *, strict: bool = True) -> None:
        self.wrong: list[str] = []
        self.refused_open = self.refused_opening = self.lost = 0
        self._dice = dice
        self._strict = strict
        self._done: Counter[str] = Counter()
        self._fence = 0
        self._master, self._other = ValkeyServer().start(), ValkeyServer().start()
        self._address = FaultProxy(self._master.host, self._master.port).start()

    def close(self) -> None:
        self._address.close()
        self._master.close()
        self._other.close()

    def turn(self, nth: int) -> None:
        before, between, after = (self._keys(nth, part) for part in ("before", "between", "after"))
        app = self._app()
        work = Work(app, lambda _, key: self._done.update([key]), lambda *_: None)
        self._all_done(work, before)
        follow(self._other, self._master)
        self._all_done(work, between)
        promote(self._other)
        self._all_done(work, after)  # acknowledged by a master whose replica has left
        self._draw(app, nth)
        self._fail_over(nth)
        self._refused(work, nth, before + between + after)
        app.close()
        self._refused_at_opening(nth)
        self._accept(nth, after)

    def _keys(self, nth: int, part: str) -> list[str]:
        return [f"once:{nth}:{part}:{i}" for i in range(self._dice.randrange(2, 6))]

    # -- before ----------------------------------------------------------------------------------

    def _app(self, durability: str = "full") -> App:
        engine = RedisEngine(f"{self._address.url(self._master.url)}?durability={durability}")
        engine._nodes.strict = engine._nodes.strict and self._strict
        return App(GroupedStore(engine, patience=PATIENCE), best_effort=True)

    def _all_done(self, work: Work, keys: list[str]) -> None:
        for key in keys:
            told = asyncio.run(_answer(work, key))
            if told != receipt(key):
                self.wrong.append(f"not served before the promotion: {key}: {told}")

    def _draw(self, app: App, nth: int) -> None:
        at = Address("fences", "claim", str(nth))  # all in one space, because fences are compared only there
        told = app.store.write(Insert(at, "x", draw=True)).block()
        if not isinstance(told, Written) or told.fence <= self._fence:
            self.wrong.append(f"fence drawn twice: turn {nth}: {told} after {self._fence}")
            return
        self._fence = told.fence

    def _fail_over(self, nth: int) -> None:
        """The old master dies, or continues where no client reaches it."""
        if self._dice.random() < 0.5:
            self._master.kill()
        self._address.lead_to(self._other.host, self._other.port)
        self._master, self._other = self._other, self._master

    # -- afterwards ------------------------------------------------------------------------------

    def _refused(self, work: Work, nth: int, keys: list[str]) -> None:
        """Repeat an answered request and make a new one: nothing is done, and the errors say why."""
        told = ""
        for key in (*keys, f"once:{nth}:new", f"once:{nth}:last"):
            told = asyncio.run(_answer(work, key))
            if told not in ("StoreUnsafe", "StoreUnavailable"):
                self.wrong.append(f"served by a replica that took over: {key}: {told!r}")
        again = [key for key in keys if self._done[key] > 1]
        if again:
            self.wrong.append(f"done again: {len(again)} of {len(keys)} after promotion {nth}: {', '.join(again)}")
        self.refused_open += told == "StoreUnsafe"

    def _refused_at_opening(self, nth: int) -> None:
        try:
            self._app().close()
        except StoreUnsafe:
            self.refused_opening += 1
        else:
            self.wrong.append(f"opened on a replica that took over: turn {nth}")

    def _accept(self, nth: int, gone: list[str]) -> None:
        """Accept the server, as a person would. Then the fences must be higher than those lost with the old master."""
        with self._app("cache") as app:
            found = [app.store.read(address_of("default", "charge", key)).block().record for key in gone]
            self.lost += found.count(None)
            self._draw(app, -nth - 1)
        self._other.start()


async def _answer(work: Work, key: str) -> str:
    try:
        return str(await work.of(key))
    except (StoreUnsafe, StoreUnavailable) as error:
        return type(error).__name__
