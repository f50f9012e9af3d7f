"""Keys of rows: one rule, the same as for claims; rows without a key are counted, and never merged."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from twiceproof import KeyRefused, Misuse
from twiceproof.keys import Template
from twiceproof.reconcile.readers import IterableRows
from twiceproof.reconcile.sources import (
    FieldPair,
    KeyedSource,
    SourceOrigin,
    SourceRow,
    Unkeyed,
    field_value,
    moment_of,
)


def source(**options) -> KeyedSource:
    origin = SourceOrigin("rows", IterableRows([]), timeout=1.0, shrink=0.2, empty=False, rate=None)
    return KeyedSource(0, "rows", origin, **{"key": "order:{id}", **options})


ONE = [(17, "17"), ("caf\u00e9", "cafe\u0301"), (Decimal("1.10"), Decimal("1.1")), (True, "true")]
TWO = [("A", "a"), ("007", "7"), ("007", 7), ("a b", "a  b"), ("1.10", Decimal("1.10"))]
NONE = ["", " ", None, "\u200b", "a\x00b", "x" * 1_048_576, 0.5, [1]]


@pytest.mark.parametrize(("one", "other"), ONE)
def test_these_are_one_key(one, other):
    assert source().row({"id": one}).key == source().row({"id": other}).key


@pytest.mark.parametrize(("one", "other"), TWO)
def test_these_are_two_keys(one, other):
    assert source().row({"id": one}).key != source().row({"id": other}).key


@pytest.mark.parametrize("value", NONE, ids=lambda value: repr(value)[:12])
def test_these_have_no_key(value):
    assert isinstance(source().row({"id": value}), Unkeyed)


@pytest.mark.parametrize(
    "value", [value for pair in ONE + TWO for value in pair] + NONE, ids=lambda value: repr(value)[:12]
)
def test_the_rule_is_that_of_claims(value):
    found = source().row({"id": value})
    try:
        key = Template("order:{order[id]}").make({"order": {"id": value}})
    except KeyRefused:
        assert isinstance(found, Unkeyed)
    else:
        assert isinstance(found, SourceRow) and found.key == key


def test_outer_space_makes_no_key_unless_it_is_removed():
    assert isinstance(source(key="{mail}").row({"mail": " a@b.de "}), Unkeyed)
    assert source(key="{mail}", normal=lambda text: text.strip().casefold()).row({"mail": " A@b.de"}).key == "a@b.de"


def test_without_an_id_the_same_row_has_the_same_reference():
    one, other = source().row({"id": 1, "a": 2}), source().row({"a": 2, "id": 1})
    assert one.ref == other.ref != source().row({"id": 1, "a": 3}).ref


def test_a_row_shows_only_what_it_was_compared_by():
    view = source(id="{number}", show=("total",), fields=(FieldPair("state"),))
    row = {"id": 1, "number": "in_1", "total": Decimal("1.50"), "state": "paid", "iban": "DE00", "note": "secret"}
    assert view.shown(row) == {"id": 1, "number": "in_1", "state": "paid", "total": "1.5"}


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "same"),
    [
        (Decimal("10.00"), 10, None, True),
        (10.0, 10, None, True),
        ("10.00", 10, None, False),
        ("10.00", 10, "0", True),
        ("cafe\u0301", "caf\u00e9", None, True),
        (date(2026, 1, 1), "2026-01-01", None, True),
        (True, 1, None, False),
        (None, "", None, False),
    ],
)
def test_values_are_compared_as_they_are_meant(one, other, tolerance, same):
    pair = FieldPair("total", tolerance)
    assert (field_value(one, pair) == field_value(other, pair)) is same


def test_times_are_read_as_people_write_them():
    assert moment_of("1970-01-01T00:01:00Z") == moment_of("1970-01-01T02:01:00+02:00") == 60.0
    assert moment_of(datetime(1970, 1, 1, 0, 1)) == moment_of(datetime(1970, 1, 1, 0, 1, tzinfo=UTC)) == 60.0
    assert moment_of(60) == 60.0
    assert moment_of("soon") is moment_of(None) is moment_of(True) is None


def test_a_source_that_lost_too_much_is_not_believed():
    origin = source().origin
    assert origin.incomplete_because(80, 100) == "" == origin.incomplete_because(1, None)
    assert "more than 20%" in origin.incomplete_because(79, 100)
    assert "no rows" in origin.incomplete_because(0, None)


def test_rows_without_a_key_are_one_finding_of_their_own(shop):
    app = shop.stage.process()

    @app.reconcile(grace="0s")
    def invoices(find):
        rows = [{"id": number, "mail": ""} for number in range(5)] + [{"id": 9, "mail": "a@b.de"}]
        yield find.duplicates(find.source("people", rows, key="{mail}", id="{id}"))

    report = shop.run(app)
    assert [(one.check, one.key, one.summary) for one in report.findings] == [
        ("unusable-key", "people", "5 rows have no key that can be used")
    ]
    assert len(report.sources[0].examples) == 5


def test_half_a_source_does_not_resolve_that_some_rows_have_no_key(shop):
    app, rows = shop.stage.process(), [{"id": number, "mail": f"{number}@b.de"} for number in range(10)]
    rows[9]["mail"] = ""
    broken = []

    def read():
        yield from rows[:5] if broken else rows
        if broken:
            raise OSError("reset")

    @app.reconcile(grace="0s")
    def invoices(find):
        yield find.duplicates(find.source("people", read, key="{mail}", id="{id}"))

    shop.run(app)
    broken.append(1)
    assert shop.run(app).resolved == 0
    assert {(one.check, one.state) for one in app.findings()} == {
        ("unusable-key", "open"),
        ("source-incomplete", "open"),
    }


def test_a_declaration_that_cannot_be_meant_is_refused(shop):
    app = shop.stage.process()

    def declared(**options):
        @app.reconcile(name=f"r{len(app.reconciliations)}")
        def one(find):
            find.source("rows", [{}], **options)
            yield find.ledger_only()

        return one.flow.name

    for wrong in ({"key": None}, {"key": "{id}", "shrink": 1.5}, {"key": "{id!r}"}, {"key": "{id}", "rate": "fast"}):
        with pytest.raises(Misuse):
            app.reconcile_now(declared(**wrong))
