"""One of everything that a ledger can hold: written by one release, and continued by every later one.

This file is only added to, never changed: it stands for the code of that release's users.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.acceptance.children import Child, die
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from twiceproof import App, NeedsReview, NotDone, PayloadMismatch, PriorFailure, ResultNotKept, Retry, Waiting
from twiceproof.claims.retention import sweep
from twiceproof.operations import block

__all__ = ["Museum"]

LEASE = 600.0
LARGE = "large " * 12_000  # more than a claim itself holds
PAYLOADS: dict[str, Any] = {  # each must have the same fingerprint for ever
    "plain": {"id": 17, "lines": [{"sku": "A7", "price": 1.5}], "note": None, "paid": True},
    "numbers": [0, -1, 2**63, 1.0, 1e-7, 1e21, decimal.Decimal("1.10"), 0.1],
    "texts": ["", "caf\u00e9", "cafe\u0301", "\U0001f4e6", 'a"b\\c', "\u2028", "a\0b"],
    "times": [dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC), dt.date(2026, 1, 2), dt.timedelta(minutes=90)],
    "sets and bytes": [{"b", "a"}, b"bytes", (1, 2)],
    "names": {"b": 1, "a": 2, "\u00e9": 3},
}


@dataclass
class Receipt:
    number: int
    paid: decimal.Decimal


class Museum:
    """Opened on a store. `furnish` writes everything once; `visit` reports what a later release does differently."""

    def __init__(self, app: App, place: Place, deadly: str = "") -> None:
        warnings.simplefilter("ignore")
        self.app = app
        self.place = place
        self.deadly = deadly  # the part at which this process dies
        self._declare_calls()
        self._declare_flows()

    def do(self, what: str) -> None:
        self.place.do(what)
        if what.split()[0] == self.deadly:
            die()

    def _declare_calls(self) -> None:
        app = self.app

        @app.once(key="order:{name}", keep="forever", lease=LEASE)
        def charge(name: str, payload: Any) -> str:
            self.do(f"charge {name}")
            return f"charged {name}"

        @app.once(key="order:{name}", keep="forever", lease=LEASE)
        def give(name: str) -> Any:
            self.do(f"give {name}")
            return {"null": None, "large": LARGE, "caf\u00e9": [1, {"a": 2.5}]}[name]

        @app.once(key="order:{number}", keep="forever", lease=LEASE)
        def typed(number: int) -> Receipt:
            self.do(f"typed {number}")
            return Receipt(number, decimal.Decimal("1.10"))

        @app.once(key="order:{how}", keep="forever", keep_failed="forever", lease=LEASE)
        def fail(how: str) -> str:
            self.do(f"fail {how}")
            if self.place.effects().count("now it works") == 0:
                raise {"bug": NotDone("a bug", final=True), "no": NotDone("no"), "silence": TimeoutError("nobody")}[how]
            return "worked"

        @app.once(key="order:{number}", keep="forever", keep_result=1.0, lease=LEASE)
        def trim(number: int) -> int:
            self.do(f"trim {number}")
            return number

        self.charge, self.give, self.typed, self.fail, self.trim = charge, give, typed, fail, trim

    def _declare_flows(self) -> None:
        app = self.app

        @app.step(repeat="never")
        def pack(order: str) -> str:
            self.do(f"pack {order}")
            return f"parcel of {order}"

        @app.step(repeat="keyed", retry=Retry(attempts=9, first=0.001))
        def pay(order: str) -> str:
            self.do(f"pay {order} {app.effect_key()}")
            return "paid"

        waits: dict[str, Callable[[], Any]] = {
            "timer": lambda: app.sleep("1h"),
            "callback": lambda: app.wait_for("paid"),
            "approval": lambda: app.approve("ship", show={"total": 5}).by,
        }

        @app.flow(key="order:{order}", keep="forever", lease=LEASE)
        def send(order: str) -> list[Any]:
            parcel = pack(order)
            word = waits[order]() if order in waits else None
            return [parcel, word, pay(order)]

        self.send = send

    # -- written ---------------------------------------------------------------------------------

    @classmethod
    def furnish(cls, place: Place) -> None:
        """Write everything once; two processes die during their work."""
        for deadly, act in {
            "charge": lambda museum: museum.charge("killed", 1),
            "pay": lambda museum: museum.send("killed"),
        }.items():
            Child(lambda _, deadly=deadly, act=act: act(cls(place.app(), place, deadly))).end()
        with place.app() as app:
            cls(app, place)._furnish()

    def _furnish(self) -> None:
        for name, payload in PAYLOADS.items():
            self.charge(name, payload)
        for name in ("null", "large", "caf\u00e9"):
            self.give(name)
        self.typed(7)
        for how in ("bug", "no", "silence"):
            with contextlib.suppress(NotDone, NeedsReview):
                self.fail(how)
        self.trim(1)
        pass_time(self.place, 2)
        block(sweep(self.app.store))
        self.send("done")
        for order in ("timer", "callback", "approval"):
            with contextlib.suppress(Waiting):
                self.send(order)
        self.send.start("queued")

    # -- taken up again --------------------------------------------------------------------------

    def visit(self, before: list[str]) -> Iterator[str]:
        """Return what has changed. `before` are the effects that were seen when it was written."""
        yield from self._check("done", self._visit_done())
        yield from self._check("failed", self._visit_failed())
        yield from self._check("runs", self._visit_runs())
        yield from self._check_effects(before)

    def _check(self, part: str, pairs: Iterator[tuple[str, Any, Any]]) -> Iterator[str]:
        for what, expected, seen in pairs:
            if expected != seen:
                yield f"{part}: {what}: expected {expected!r:.120}, seen {seen!r:.160}"

    def _visit_done(self) -> Iterator[tuple[str, Any, Any]]:
        for name, payload in PAYLOADS.items():
            yield f"charge {name}", f"charged {name}", attempt(lambda: self.charge(name, payload))  # noqa: B023
            other = attempt(lambda: self.charge(name, ["another"]))  # noqa: B023
            yield f"charge {name} with another payload", PayloadMismatch, other
        for name, value in {"null": None, "large": LARGE, "cafe\u0301": [1, {"a": 2.5}]}.items():
            yield f"give {name}", value, attempt(lambda: self.give(name))  # noqa: B023
        yield "typed", Receipt(7, decimal.Decimal("1.10")), attempt(lambda: self.typed(7))
        yield "trim", ResultNotKept, attempt(lambda: self.trim(1))

    def _visit_failed(self) -> Iterator[tuple[str, Any, Any]]:
        yield "a bug", PriorFailure, attempt(lambda: self.fail("bug"))
        yield "silence", NeedsReview, attempt(lambda: self.fail("silence"))
        self.place.do("now it works")
        yield "no", "worked", attempt(lambda: self.fail("no"))
        self.app.settle("fail", "order:silence", "happened", by="ann", result="settled")
        yield "silence, settled", "settled", attempt(lambda: self.fail("silence"))
        pass_time(self.place, LEASE + 1)
        yield "killed", NeedsReview, attempt(lambda: self.charge("killed", 1))

    def _visit_runs(self) -> Iterator[tuple[str, Any, Any]]:
        yield "done", ["parcel of done", None, "paid"], attempt(lambda: self.send("done"))
        self.app.worker().run(until_idle=True)
        yield "queued", ["parcel of queued", None, "paid"], attempt(lambda: self.send("queued"))
        yield "killed", ["parcel of killed", None, "paid"], attempt(lambda: self.send("killed"))
        yield "timer, too early", Waiting, attempt(lambda: self.send("timer"))
        pass_time(self.place, 3_601)
        self.app.worker().run(until_idle=True)
        yield "timer", ["parcel of timer", None, "paid"], attempt(lambda: self.send("timer"))
        self.app.deliver_to(flow="send", key="order:callback", name="paid", payload="money")
        yield "callback", ["parcel of callback", "money", "paid"], attempt(lambda: self.send("callback"))
        for asked in self.app.approvals(flow="send"):
            self.app.decide(asked.id, True, by="ann", shown=asked.digest)
        yield "approval", ["parcel of approval", "ann", "paid"], attempt(lambda: self.send("approval"))

    def _check_effects(self, before: list[str]) -> Iterator[str]:
        """Check that only unfinished work was done, and keyed effects with the same key."""
        expected = Counter(
            [
                "now it works",
                "fail no",
                "pack queued",
                *(f"pay {order}" for order in ("queued", "killed", "timer", "callback", "approval")),
            ]
        )
        seen = [" ".join(line.split()[:2]) if line.startswith("pay") else line for line in self.place.effects()]
        if Counter(seen) != expected:
            yield f"effects: expected {dict(expected)}, seen {dict(Counter(seen))}"
        keys = [{line for line in lines if line.startswith("pay killed")} for lines in (before, self.place.effects())]
        if keys[0] != keys[1]:
            yield f"effect key: expected {keys[0]}, seen {keys[1]}"


def attempt(call: Callable[[], Any]) -> Any:
    """What it returned, or the kind of error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return type(error)
