"""An invented next release with one more migration, deployed while this release is working."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from twiceproof import App, InProgress
from twiceproof.errors import TwiceproofError
from twiceproof.stores.base import Migration, migrations

__all__ = ["SideBySide", "known_as", "upgrade"]

MORE = (
    "ALTER TABLE {schema}.twiceproof_records ADD COLUMN remark text;\nCREATE TABLE {schema}.twiceproof_more (x int);\n"
)


def upgrade(store: str) -> None:
    """Make this process behave like the next release from now on."""
    schema: Any = importlib.import_module(f"twiceproof.stores.{store}.schema")
    known = migrations(store)
    more = MORE if store == "postgres" else MORE.replace("{schema}.", "")
    schema.migrations = lambda dialect: [*known, Migration(len(known) + 1, "9999_more.sql", more)]


def known_as(place: Place) -> str:
    """Return what a process of this release says when it opens the store."""

    def work(child: Child) -> None:
        try:
            place.app().close()
            child.tell("opened")
        except TwiceproofError as error:
            child.tell(type(error).__name__)

    child = Child(work)
    told = child.hear()
    child.end()
    return str(told)


class SideBySide:
    """Two processes of two releases on one store, and their common orders."""

    def __init__(self, place: Place, store: str) -> None:
        self.place = place
        self.store = store

    def run(self) -> Iterator[str]:
        old = Child(self._old)
        yield from expect("this release, at work", "inside", old.hear())
        new = Child(self._new)
        yield from expect("the next release finds it at work", ["InProgress", "receipt 3"], new.hear())
        old.go()
        yield from expect("this release ends and goes on", ["receipt 1", "receipt 2", "receipt 3"], old.hear())
        new.go()
        yield from expect("the next release replays", ["receipt 1", "receipt 2", "receipt 3"], new.hear())
        yield from expect("both end well", [0, 0], [old.end(), new.end()])
        yield from expect("this release, started anew", "SchemaMismatch", known_as(self.place))
        yield from expect("effects", [f"charge {number}" for number in (1, 2, 3)], sorted(self.place.effects()))

    def _old(self, child: Child) -> None:
        with self.place.app() as app:

            def inside() -> None:
                child.tell("inside")
                child.wait_for_go()

            first = self._charge(app, 1, inside)
            child.tell([first, self._charge(app, 2), self._charge(app, 3)])

    def _new(self, child: Child) -> None:
        upgrade(self.store)
        with self.place.app() as app:
            child.tell([self._charge(app, 1), self._charge(app, 3)])
            child.wait_for_go()
            child.tell([self._charge(app, number) for number in (1, 2, 3)])

    def _charge(self, app: App, number: int, meanwhile: Callable[[], object] = lambda: None) -> str:
        @app.once(key="order:{number}", name="charge")
        def work(number: int) -> str:
            self.place.do(f"charge {number}")
            meanwhile()
            return f"receipt {number}"

        try:
            return work(number)
        except InProgress as error:
            return type(error).__name__


def expect(what: str, expected: object, seen: object) -> Iterator[str]:
    if expected != seen:
        yield f"{what}: expected {expected!r}, seen {seen!r}"
