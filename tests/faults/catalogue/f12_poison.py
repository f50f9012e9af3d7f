"""F12: malformed and extreme input everywhere: accepted completely or refused completely, and the next caller is
served.
"""

from __future__ import annotations

import importlib
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.children import Child
from tests.acceptance.http_server import SHOP, HttpServer
from tests.faults.catalogue.poison_claims import ClaimsDoor
from tests.faults.catalogue.poison_flows import FlowsDoor
from tests.faults.catalogue.poison_http import HttpDoor
from tests.faults.catalogue.poison_queue import QueueDoor
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from twiceproof.keys import key as keys
from twiceproof.keys import maker

TITLE = "poison payloads"
# Over all stores; enough for each kind to occur often.
TIMES = {ClaimsDoor: (2_400, 375), FlowsDoor: (900, 150), QueueDoor: (2_100, 400)}
AT_HTTP = (2_800, 280)
PAYLOADS = 5_000
CONTROL = 250
ROOT = Path(__file__).parents[3]
PLANT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.faults.planted import plant_ordered
plant_ordered()
"""
ANY_BODY = """
import twiceproof.server.limits
twiceproof.server.limits.decompress = lambda body, encoding, largest: body
twiceproof.server.limits.too_deep = lambda body, most: False
"""
PLENTY = 300  # seconds; a process that takes longer hangs


def run(trial: Trial, finding: Finding) -> None:
    total = over_http(trial, finding, trial.times(*AT_HTTP))
    for store in trial.stores:
        for door, times in TIMES.items():
            total += through(trial, finding, store, door, trial.times(*times) // len(trial.stores))
    finding.reach("payloads", trial.times(PAYLOADS), total)
    control(trial, finding)


def through(trial: Trial, finding: Finding, store: str, door: Any, times: int) -> int:
    tried, wrong = visit(trial, store, door, times)
    for sentence in wrong:
        finding.violated(f"{NAMES[store]}, seed {trial.seed}: {sentence}")
    for kind, hits in tried.items():
        finding.hit(kind, hits)
    return sum(tried.values())


def visit(
    trial: Trial, store: str, door: Any, times: int, first: Callable[[], object] = lambda: None
) -> tuple[dict[str, int], list[str]]:
    """In a process of its own, which is ended if it hangs."""
    with trial.place(store) as place:

        def work(child: Child) -> None:
            signal.alarm(PLENTY)
            first()
            with place.app() as app:
                visitor = door(trial, store, place, app)
                visitor.run(times)
                child.tell([dict(visitor.tried), visitor.wrong])

        child = Child(work)
        told = child.hear()
        ended = child.end()
    tried, wrong = told or ({}, [f"{door.name}: wedged or broken: it ended with {ended}"])
    return tried, wrong


def over_http(trial: Trial, finding: Finding, times: int) -> int:
    door = visit_server(trial, times, PLANT + SHOP)
    for sentence in door.wrong:
        finding.violated(f"SQLite, seed {trial.seed}: {sentence}")
    for kind, hits in door.tried.items():
        finding.hit(kind, hits)
    return times


def visit_server(trial: Trial, times: int, shop: str) -> HttpDoor:
    with tempfile.TemporaryDirectory(dir=trial.directory) as here:
        server = HttpServer(Path(here), "--no-access-log", shop=shop)
        try:
            door = HttpDoor(server, trial.dice("poison", "http"))
            door.run(times)
        finally:
            server.close()
    return door


# -- controls ------------------------------------------------------------------------------------


def control(trial: Trial, finding: Finding) -> None:
    for name, take_away in {"keys that nobody looks at": any_key, "values that nobody looks at": any_value}.items():
        _, wrong = visit(trial, trial.stores[0], ClaimsDoor, CONTROL, take_away)
        finding.control(name, f"{len(wrong)} payloads, first: {wrong[0][:120]}" if wrong else "")
    _, wrong = visit(trial, trial.stores[0], FlowsDoor, CONTROL // 2, any_value)
    finding.control("inputs of runs that nobody looks at", f"{len(wrong)} payloads" if wrong else "")
    wrong = visit_server(trial, CONTROL // 5, PLANT + SHOP + ANY_BODY).wrong
    finding.control("bodies that nobody looks into", f"{len(wrong)} payloads" if wrong else "")


def any_key() -> None:
    keys.validate_key = maker.validate_key = str  # type: ignore[assignment]


def any_value() -> None:
    """Without the refusal of values that have no text: their `str()` becomes part of the key."""
    hashing = importlib.import_module("twiceproof.keys.canonical")  # its name in the package is the function's
    hashing.canonical = lambda value: repr(type(value)).encode()
