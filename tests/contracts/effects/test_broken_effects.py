"""The contract of effects bites: each effect here breaks one promise, and the tests that should catch it do."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

import pytest

from twiceproof import Absent, Happened, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects.repeat import Declared, check
from twiceproof.prove.effect_contract import EffectContract, EffectTrial

PASSWORD = "hunter2-canary"
TESTS = [name for name, _ in inspect.getmembers(EffectContract, inspect.isfunction) if name.startswith("test_")]


class Books:
    """An accounting system in memory, which takes each key once."""

    def __init__(self) -> None:
        self.invoices: list[dict[str, Any]] = []
        self.fault = ""
        self.down = False
        self.mutex = threading.Lock()

    def take(self, key: str, fault: str) -> bool:
        """Return whether this fault is played now."""
        played, self.fault = self.fault == fault, "" if self.fault == fault else self.fault
        return played

    def find(self, key: str) -> list[dict[str, Any]]:
        if self.down or self.take(key, "blind"):
            raise ConnectionError("no answer")
        return [one for one in self.invoices if one["key"] == key]

    def create(self, key: str) -> dict[str, Any]:
        if self.take(key, "refuse"):
            raise NotDone("the books are closed")
        with self.mutex:
            known = [one for one in self.invoices if one["key"] == key]
            if not known:
                self.invoices.append({"id": len(self.invoices) + 1, "key": key})
            made = (known or self.invoices[-1:])[0]
        if self.take(key, "lose"):
            raise OutcomeUnknown("no answer came")
        return made


class Invoice:
    """An effect that keeps every promise."""

    name = "CREATE invoice"
    result_type: Any = dict

    def __init__(self, books: Books) -> None:
        self.books = books

    @property
    def repeat(self) -> Declared:
        return check(self.look)

    def describe(self) -> dict[str, Any]:
        return {"order": 17}

    def perform(self, effect_key: str) -> Any:
        return dict(self.books.create(effect_key))

    def look(self, effect_key: str) -> Any:
        try:
            found = self.books.find(effect_key)
        except ConnectionError as error:
            return Unknown(str(error))
        return Happened(found[0]) if found else Absent


class TellsItsPassword(Invoice):
    def describe(self) -> dict[str, Any]:
        return {"order": 17, "password": PASSWORD}


class DescribesItselfAnew(Invoice):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.described = 0

    def describe(self) -> dict[str, Any]:
        self.described += 1
        return {"order": 17, "time": self.described}


class HappensWhenItIsMade(Invoice):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        if not books.down:
            books.create("another key")


class DrawsAKeyForEachAttempt(Invoice):
    def perform(self, effect_key: str) -> Any:
        return super().perform(f"{effect_key}-{len(self.books.invoices)}")


class FindsNothing(Invoice):
    def look(self, effect_key: str) -> Any:
        return look if isinstance(look := super().look(effect_key), Unknown) else Absent


class FindsWhatIsNotThere(Invoice):
    def look(self, effect_key: str) -> Any:
        look = super().look(effect_key)
        return look if isinstance(look, Unknown | Happened) else Happened({})


class TakesAFailureForAbsent(Invoice):
    def look(self, effect_key: str) -> Any:
        look = super().look(effect_key)
        return Absent if isinstance(look, Unknown) else look


class RaisesInItsLook(Invoice):
    def look(self, effect_key: str) -> Any:
        return Happened(found[0]) if (found := self.books.find(effect_key)) else Absent


class WritesWhenItLooks(Invoice):
    def look(self, effect_key: str) -> Any:
        if not self.books.down:
            self.books.invoices.append({"id": 0, "key": "of a look"})
        return super().look(effect_key)


class CallsARefusalUnknown(Invoice):
    def perform(self, effect_key: str) -> Any:
        try:
            return super().perform(effect_key)
        except NotDone as refusal:
            raise OutcomeUnknown(str(refusal)) from refusal


class ActsBeforeItIsRefused(Invoice):
    def perform(self, effect_key: str) -> Any:
        if self.books.fault == "refuse":
            self.books.invoices.append({"id": 0, "key": effect_key})
        return super().perform(effect_key)


class LooksThenCreates(Invoice):
    """Two at once both find nothing."""

    barrier = threading.Barrier(8)

    def perform(self, effect_key: str) -> Any:
        if self.books.find(effect_key):
            return super().perform(effect_key)
        if threading.current_thread() is not threading.main_thread():
            self.barrier.wait(10)
            self.books.invoices.append({"id": len(self.books.invoices), "key": effect_key})
        return super().perform(effect_key)


class ReturnsAnotherType(Invoice):
    def perform(self, effect_key: str) -> Any:
        return list(super().perform(effect_key))


class LeavesItsKeyOut(Invoice):
    def perform(self, effect_key: str) -> Any:
        made = super().perform(effect_key)
        self.books.shown = "no key"  # type: ignore[attr-defined]
        return made


BROKEN: dict[type[Invoice], str] = {
    TellsItsPassword: "describes_itself",
    DescribesItselfAnew: "describes_itself",
    HappensWhenItIsMade: "describes_itself",
    DrawsAKeyForEachAttempt: "when_its_answer_is_lost",
    FindsNothing: "when_its_answer_is_lost",
    FindsWhatIsNotThere: "before_it_is_performed",
    TakesAFailureForAbsent: "a_look_that_fails",
    RaisesInItsLook: "answered_with_an_error",
    WritesWhenItLooks: "looking_changes_nothing",
    CallsARefusalUnknown: "a_clean_refusal",
    ActsBeforeItIsRefused: "a_clean_refusal",
    LooksThenCreates: "attempts_at_once",
    ReturnsAnotherType: "performed_twice",
    LeavesItsKeyOut: "the_effect_key_is_at",
}


def trial_of(make: type[Invoice]) -> EffectTrial:
    books, away = Books(), Books()
    away.down = True

    def play(fault: str) -> Any:
        return lambda: setattr(books, "fault", fault)

    return EffectTrial(
        make(books),
        state=lambda: [dict(one) for one in books.invoices],
        count=lambda: len(books.invoices),
        lose_answer=play("lose"),
        refuse=play("refuse"),
        unreachable=make(away),
        carried=lambda: getattr(books, "shown", str(books.invoices)),
        blind=play("blind"),
    )


@functools.cache
def failures(make: type[Invoice]) -> tuple[str, ...]:
    """Return the tests of the contract that fail for an effect."""

    class Contract(EffectContract):
        secret = PASSWORD

    failed = []
    for name in TESTS:
        try:
            getattr(Contract(), name)(trial_of(make))
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it fails with
            failed.append(name)
    return tuple(failed)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_effect_is_caught_by_the_test_for_its_promise(broken: type[Invoice]) -> None:
    assert any(BROKEN[broken] in name for name in failures(broken)), failures(broken)


def test_an_effect_that_keeps_its_promises_passes() -> None:
    assert failures(Invoice) == ()


def test_every_test_of_the_contract_catches_some_broken_effect() -> None:
    assert {name for broken in BROKEN for name in failures(broken)} == set(TESTS)
