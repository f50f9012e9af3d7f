"""A race for keys of fifty callers in four processes, and a kill in the middle of batches.

F24 of `make prove` has a thousand keys, with effects.
"""

import multiprocessing
import threading

from tests.contracts.stores.row_places import RowPlace
from twiceproof.errors import StoreUnavailable
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.open import open_store

KEYS, CALLERS, PROCESSES = 200, 50, 4


def winners(place: RowPlace) -> list[int]:
    """Each key as often as somebody won it."""
    place.open().close()
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(PROCESSES), spawn.Queue()
    racers = [spawn.Process(target=_race, args=(me, barrier, answers, place.url)) for me in range(PROCESSES)]
    for racer in racers:
        racer.start()
    won = [key for _ in racers for key in answers.get(timeout=900)]
    for racer in racers:
        racer.join(60)
    return sorted(won)


def _race(me, barrier, answers, url):
    store = open_store(url)
    barrier.wait(60)
    won = []

    def call(nth):
        for key in range(KEYS):
            at = Address(f"s{key}", "claim", "self")
            if isinstance(store.write(Insert(at, f"{me} {nth}", draw=True)).block(), Written):
                won.append(key)

    callers = [threading.Thread(target=call, args=(nth,)) for nth in range(me, CALLERS, PROCESSES)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    answers.put(won)
    store.close()


# -- a kill in the middle of batches ---------------------------------------------------------------


def parts(nth, key):
    return [Address(f"{nth}-{key}", kind, "self") for kind in ("claim", "run", "step")]


def kill_under_batches(store, kill, restart):
    """Four threads write batches of three records until the server is killed; it is started again. Every batch is there
    whole or not at all, and those that were acknowledged are there.
    """
    answers, killed = [], threading.Event()
    threads = [threading.Thread(target=_write_batches, args=(store, nth, answers, killed)) for nth in range(4)]
    for thread in threads:
        thread.start()
    while len(answers) < 80:
        threads[0].join(0.002)
    kill()
    killed.set()
    restart()
    for thread in threads:
        thread.join(60)
    for nth, key, answer in answers:
        found = {one.record is not None for one in store.read_each(parts(nth, key)).block()}
        assert len(found) == 1, f"{nth}-{key}: a part of a batch"
        assert found == {True} or isinstance(answer, StoreUnavailable)


def _write_batches(store, nth, answers, killed):
    for key in range(10_000):
        if killed.is_set():
            return
        try:
            landed = store.write(*(Insert(one, str(nth), draw=True) for one in parts(nth, key))).block()
        except StoreUnavailable as error:
            landed = error
        answers.append((nth, key, landed))
