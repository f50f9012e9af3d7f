"""Time, ids and dice are injected."""

from __future__ import annotations

import os
import threading

from twiceproof.clock import Ids, jitter, system_clock
from twiceproof.prove.clocks import ManualClock


def test_ids_never_repeat_over_many_threads() -> None:
    ids, seen = Ids(), []

    def draw() -> None:
        seen.extend([ids() for _ in range(2_000)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 16_000


def test_two_makers_of_ids_do_not_share_a_stem() -> None:
    assert Ids()() != Ids()()


def test_an_id_begins_with_its_prefix() -> None:
    assert Ids(lambda: "host:5:", lambda size: b"\1" * size)() == "host:5:0101010101010101-1"


def test_a_fork_draws_a_new_stem() -> None:
    """A child that went on with its parent's stem would own its parent's claims."""
    ids = Ids()
    ids()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        os.write(write, ids().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    childs = os.read(read, 100).decode()
    os.close(read)
    assert childs.split("-")[0] != ids().split("-")[0]
    assert childs.endswith("-1")


def test_jitter_lies_between_half_and_the_whole() -> None:
    assert (jitter(10, lambda: 0.0), jitter(10, lambda: 0.5), jitter(10, lambda: 1.0)) == (5.0, 7.5, 10.0)
    assert all(5 <= jitter(10) <= 10 for _ in range(100))


def test_the_systems_clock_goes_forwards() -> None:
    assert system_clock.monotonic() <= system_clock.monotonic()
    assert system_clock.now() > 1_700_000_000


def test_a_fake_clock_moves_only_when_it_is_moved() -> None:
    clock = ManualClock()
    before = (clock.now(), clock.monotonic())
    clock.sleep(5)
    clock.set_wall(-3_600)
    assert (clock.now() - before[0], clock.monotonic() - before[1]) == (5 - 3_600, 5)
