"""A run with one of everything, taken from wherever it is to its end. What the outside saw is counted outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.later import pass_time
from tests.acceptance.places import Place
from twiceproof import Absent, App, Happened, NeedsReview, PriorFailure, Retry, Waiting, check
from twiceproof.claims.claim import address_of
from twiceproof.flows.engine.ledger import Entry, entry_of

__all__ = ["LEASE", "RECEIPT", "Journey", "Purchase", "Return", "entries", "nothing"]

LEASE = 600.0  # however slow the machine, it lapses only when a test says so
QUICK = Retry(attempts=9, first=0.001)
RECEIPT = ["ch_1", "inv_1", "money", "ann"]
MOST_LEGS = 20  # waits and settlements on one way

Hook = Callable[[str], object]


def nothing(moment: str) -> None:
    """What happens between effect and record by default."""


class Journey:
    """One order's run. Any process may take it up; whatever it finds done stays done."""

    name = ""

    def __init__(self, place: Place, order: int) -> None:
        self.place = place
        self.order = order

    # -- carried out -----------------------------------------------------------------------------

    def declare(self, app: App, hook: Hook) -> Any:
        raise NotImplementedError

    def go(self, app: App, hook: Hook = nothing) -> Any:
        """As far as it goes without a person's word about what nobody knows."""
        flow = self.declare(app, hook)
        for _ in range(MOST_LEGS):
            try:
                return flow(self.order)
            except Waiting as error:
                self.see_to(app, error)
            except NeedsReview:
                return "in review"
            except (ValueError, PriorFailure):
                return "failed"
        raise AssertionError("it goes round in circles")

    def child(self, wrap: Any = lambda engine: engine, hook: Hook = nothing, act: Any = None) -> int:
        """The same, or another act, in a process of its own; how that ended."""

        def work(_: Child) -> None:
            app = self.place.app(wrap)
            app.runtime.flusher.stop()  # its commits come when they come: without it, the n-th is always the same one
            (act or type(self).go)(self, app, hook)

        return Child(work).end()

    def see_to(self, app: App, waiting: Waiting) -> None:
        """Whatever it waits for comes. Said twice, each of these counts once."""
        if waiting.data["until"] is not None:
            pass_time(self.place, 21)
        else:
            self.answer(app)

    def answer(self, app: App) -> None:
        app.deliver_to(flow=self.name, key=self.key, name="paid", payload="money")
        for asked in app.approvals(flow=self.name):
            if asked.key == self.key:
                app.decide(asked.id, True, by="ann", shown=asked.digest)

    # -- seen from outside -----------------------------------------------------------------------

    @property
    def key(self) -> str:
        return f"order:{self.order}"

    def do(self, order: int, what: str) -> None:
        """For whichever order: a worker carries out the others' runs as well."""
        self.place.do(f"{self.name}:{order} {what}")

    def effects(self, order: int | None = None) -> list[str]:
        """Of one run: the others' are in the same file."""
        mine = f"{self.name}:{self.order if order is None else order} "
        return [line.removeprefix(mine) for line in self.place.effects() if line.startswith(mine)]

    def entries(self, app: App) -> dict[str, Entry]:
        return entries(app, self.name, self.key)


def entries(app: App, flow: str, key: str) -> dict[str, Entry]:
    """What the ledger says about each step."""
    page = app.store.scan("step", space=address_of("default", flow, key).space).block()
    return {record.at.key: entry_of(record) for record in page.records}


class Purchase(Journey):
    """A step of each kind, a timer, a callback and an approval."""

    name = "purchase"

    def declare(self, app: App, hook: Hook) -> Any:
        @app.step(repeat="safe", retry=QUICK)
        def upsert(order: int) -> None:
            hook("before upsert")
            self.do(order, "upsert")
            hook("after upsert")

        @app.step(repeat="keyed", retry=QUICK)
        def charge(order: int) -> str:
            hook("before charge")
            self.do(order, "charge " + app.effect_key())
            hook("after charge")
            return "ch_1"

        def find(order: int) -> Any:
            return Happened("inv_1") if "invoice" in self.effects(order) else Absent

        @app.step(repeat=check(find, settling=0.0), retry=QUICK)
        def invoice(order: int) -> str:
            hook("before invoice")
            self.do(order, "invoice")
            hook("after invoice")
            return "inv_1"

        @app.step(repeat="never")
        def mail(order: int) -> None:
            hook("before mail")
            self.do(order, "mail")
            hook("after mail")

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def buy(order: int) -> list[str]:
            upsert(order)
            paid = charge(order)
            made = invoice(order)
            mail(order)
            app.sleep("20s")
            money = app.wait_for("paid")
            return [paid, made, money, app.approve("ship", show={"order": order}).by]

        return buy

    def check_world(self, app: App, ended: Any) -> None:
        seen = self.effects()
        assert "upsert" in seen
        assert len({what for what in seen if what.startswith("charge")}) == 1, "a keyed effect is one to its provider"
        assert seen.count("invoice") == 1, "a checked effect happens once"
        assert seen.count("mail") <= 1, "an effect never to be repeated happens at most once"
        mail = self.entries(app)["mail"]
        if ended == "in review":
            assert mail.state == "unknown", "only what really was ambiguous is in review"
        else:
            assert (ended, mail.state, seen.count("mail")) == (RECEIPT, "done", 1)

    def settle(self, app: App) -> Any:
        """A person looks at the outside, says what is true there, and the run goes to its end."""
        word, said = ("happened", {"result": None}) if "mail" in self.effects() else ("did-not-happen", {})
        app.settle_run(f"{self.name}/{self.key}", word, by="ann", **said)
        return self.go(app)


class Return(Journey):
    """A failure after what can be undone: reserved by a key that its provider knows, and released the same way."""

    name = "return"

    def declare(self, app: App, hook: Hook) -> Any:
        @app.step(repeat="keyed", retry=QUICK)
        def release(order: int, result: str) -> None:
            hook("before release")
            self.do(order, f"release {result} {app.effect_key()}")
            hook("after release")

        def recall(order: int) -> None:
            hook("before recall")
            self.do(order, "recall")
            hook("after recall")

        @app.step(repeat="keyed", retry=QUICK, undo=release)
        def reserve(order: int) -> str:
            hook("before reserve")
            self.do(order, "reserve " + app.effect_key())
            hook("after reserve")
            return "A7"

        @app.step(repeat="never", undo=recall)
        def announce(order: int) -> None:
            hook("before announce")
            self.do(order, "announce")
            hook("after announce")

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def send(order: int) -> None:
            reserve(order)
            announce(order)
            raise ValueError("nobody pays")

        return send

    def check_world(self, app: App, ended: Any) -> None:
        seen, entries = self.effects(), self.entries(app)
        kinds = {what: len({line for line in seen if line.split()[0] == what}) for what in ("reserve", "release")}
        assert seen.count("announce") <= 1
        assert seen.count("recall") <= 1
        if ended == "in review":
            unknown = [name for name, entry in entries.items() if entry.state == "unknown"]
            assert unknown in (["announce"], ["undo:announce"])
            assert "release" not in [line.split()[0] for line in seen], "no undo around an open question"
            return
        assert ended == "failed"
        assert kinds == {"reserve": 1, "release": 1}
        assert (seen.count("announce"), seen.count("recall")) == (1, 1)
        order = [line.split()[0] for line in seen]
        assert order.index("recall") < order.index("release"), "backwards"
