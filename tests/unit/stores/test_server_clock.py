"""The service's time from the dates of its answers, and numbers that follow it."""

import pytest

from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.rows.row import micros, seconds
from twiceproof.stores.rows.server_clock import Numbers, ServerClock, date_of

TRUE = 1_800_000_000.25  # the service's time when the test begins


class Service:
    """Answers with its date, in whole seconds, after a quarter of the request's time."""

    def __init__(self, clock, offset=TRUE):
        self.clock, self.offset = clock, offset

    def now(self):
        return self.clock.ticks + self.offset

    def ask(self, server_clock, took=0.02):
        sent = self.clock.ticks
        self.clock.advance(took / 4)
        date = float(int(self.now()))
        self.clock.advance(took * 3 / 4)
        server_clock.heard(date, sent, self.clock.ticks)


def heard(answers, *, wall=0.0):
    clock = ManualClock()
    clock.set_wall(wall)
    service, estimate = Service(clock), ServerClock(clock)
    for _ in range(answers):
        service.ask(estimate)
        clock.advance(0.13)
    return clock, service, estimate


@pytest.mark.parametrize("wall", [0.0, -86_400.0, 1e6])
@pytest.mark.parametrize("answers", [1, 3, 50])
def test_the_estimate_is_within_its_bounds_whatever_this_machines_clock_says(wall, answers):
    _, service, estimate = heard(answers, wall=wall)
    assert abs(estimate.now() - service.now()) <= estimate.uncertainty + 1e-6
    assert estimate.uncertainty <= 0.52


def test_each_answer_narrows_the_bounds():
    assert heard(50)[2].uncertainty < 0.1 < 0.4 < heard(1)[2].uncertainty


def test_a_better_estimate_never_sets_the_clock_back():
    clock, service, estimate = heard(1)
    last = estimate.now()
    for _ in range(200):
        clock.advance(0.01)
        service.ask(estimate, took=0.004)
        assert estimate.now() >= last
        last = estimate.now()
    assert abs(last - service.now()) < 0.1


def test_what_is_stamped_as_due_now_is_due_while_the_clock_stands_still():
    clock, service, estimate = heard(1)
    for _ in range(200):
        clock.advance(0.0001234567)
        service.ask(estimate, took=0.004)
        assert seconds(micros(estimate.now())) <= estimate.now()


def test_a_service_whose_clock_was_set_is_followed():
    _, service, estimate = heard(20)
    service.offset -= 3_600
    service.ask(estimate)
    assert abs(estimate.now() - service.now()) < 0.6


def test_an_estimate_is_doubtful_after_a_suspension_until_the_next_answer():
    """Then the wall clock has moved on, and the monotonic one has not."""
    clock, service, estimate = heard(3)
    clock.advance(300.0)
    assert not estimate.is_doubtful()
    clock.set_wall(clock.now() + 60.0)
    service.offset += 60.0
    assert estimate.is_doubtful() and service.now() - estimate.now() > 59.0
    service.ask(estimate)
    assert not estimate.is_doubtful() and abs(service.now() - estimate.now()) < 0.6
    clock.advance(3_600.0)
    assert estimate.is_doubtful()  # clocks drift


def test_a_service_without_a_date_leaves_this_machines_clock():
    clock = ManualClock()
    estimate = ServerClock(clock)
    estimate.heard(None, 0.0, 0.0)
    assert estimate.now() == clock.now() and estimate.uncertainty is None


def test_dates_are_read_or_are_none():
    assert date_of("Wed, 18 Nov 2026 16:59:05 GMT") == 1795021145.0
    assert date_of("yesterday") is None and date_of("") is None and date_of(None) is None


def test_numbers_grow_follow_the_time_and_pass_what_they_replace():
    numbers = Numbers()
    assert [numbers.draw(100), numbers.draw(50), numbers.draw(200), numbers.draw(0, above=900), numbers.draw(0)] == [
        100,
        101,
        200,
        901,
        902,
    ]
