"""A drawn history, as a person sees it."""

from __future__ import annotations

from tests.faults.linearizability import Operation, check, draw
from tests.faults.linearizability.checker import draw_violation
from tests.faults.linearizability.model import Complete, Ended, Held, Take

HISTORY = [
    Operation("c1", "order:17", Take("c1.1", 10), Held(1, 1), 0, 20),
    Operation("c2", "order:17", Complete(1, "x"), None, 30),
    Operation("c3", "order:17", Take("c3.1", 10), Held(1, 1), 40, 50),
]


def test_bars_show_what_went_on_at_the_same_time():
    lines = draw(HISTORY).splitlines()
    assert [line.split("  ", 1)[1].strip() for line in lines] == [
        "├┤     held fence=1 attempt=1",
        "├┄┄  no answer",
        "├┤  held fence=1 attempt=1",
    ]
    assert lines[0].index("├") < lines[1].index("├") < lines[2].index("├")


def test_a_violation_says_where_it_comes_from_and_what_fits_nowhere():
    text = draw_violation(check(HISTORY), origin="seed 7")
    assert text.startswith("order:17, seed 7: no order of these explains every answer\n")
    assert text.endswith("  c3 take owner=c3.1 lease=10 repeat=never → held fence=1 attempt=1")
    assert "the claim is done by c1.1: x. Then this is impossible:" in text


def test_nothing_is_drawn_as_nothing():
    assert draw([]) == ""


def test_an_operation_of_no_time_has_a_place():
    assert "│" in draw([Operation("c", "k", Complete(1, "x"), Ended(2), 5, 5)])
