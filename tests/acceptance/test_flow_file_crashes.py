"""`kill -9` at every commit of a flow in a file with every verb, and amid 1,000 items: what the outside sees."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import file_journeys
from tests.acceptance.children import Child, die
from tests.acceptance.file_journeys import RESULT, EveryVerb, Outside, outside
from tests.acceptance.journeys import LEASE
from tests.acceptance.later import pass_time
from tests.acceptance.wrappers import Dying
from twiceproof import Absent, Happened, load_flows
from twiceproof.effects import ssh

pytestmark = pytest.mark.forks
STORES = pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.server)], indirect=True)
FEWEST = 25  # commits of a clean run
ITEMS = 1_000
MANY = f"""\
flow: many
input: {{order: integer}}
key: many:{{order}}
lease: {LEASE:.0f}s
steps:
  - step: listed
    call: {__name__}:items
    repeat: safe
  - each: listed
    as: number
    id: "{{number}}"
    at_once: 16
    do:
      - step: done
        call: {__name__}:do_item
        with: {{number: =number}}
        repeat: {{settle: 0, check: "{__name__}:find_item"}}
returns: =len(listed)
"""


@pytest.fixture(autouse=True)
def _started(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started over SSH is counted outside."""

    async def start(host: str, script: str, *rest: Any) -> None:
        journey = file_journeys.RUNNING[-1]
        journey.do(journey.order, "ssh")

    monkeypatch.setattr(ssh, "start_command", start)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    with outside(tmp_path) as made:
        monkeypatch.setenv("CHAT_WEBHOOK", f"{(tmp_path / 'web').read_text()}/chat")
        monkeypatch.setenv("TWICEPROOF_URL", "https://twiceproof.example")  # for the callback of a command
        yield made


@STORES
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
def test_a_file_with_every_verb_killed_at_every_commit_comes_to_its_end(place, seen, landed):
    journeys = [EveryVerb(place, 1)]
    while journeys[-1].child(lambda engine: Dying(engine, len(journeys), after=landed)) == -signal.SIGKILL:
        journeys.append(EveryVerb(place, len(journeys) + 1))
    assert len(journeys) > FEWEST
    pass_time(place, LEASE + 1)
    with place.app() as app:
        ends = Counter()
        for journey in reversed(journeys):  # those that wait for a callback before one that waits in vain, for hours
            ended = journey.go(app)
            journey.check_outside(app, seen, ended)
            ends[journey.doubt(app) if ended == "in review" else "done" if ended == RESULT else ended] += 1
    # In doubt is a command whose start, and a mail whose sending, was or was not recorded; nothing else ever is.
    # Branches share commits by chance: the n-th commit of two journeys can be the one before the same mail.
    assert set(ends) <= {"done", "start:finished", "mail"}, ends
    assert ends["done"] > FEWEST - 5, ends


# -- 1,000 items ---------------------------------------------------------------------------------

WHERE: list[Path] = []  # where the items are counted
DYING: dict[str, int] = {}  # at which item, and whether before or after its effect


def items() -> list[int]:
    return list(range(ITEMS))


def do_item(number: int) -> int:
    if DYING.get("before") == number:
        die()
    with (WHERE[-1] / "items").open("a") as log:
        log.write(f"{number}\n")
    if DYING.get("after") == number:
        die()
    return number


def find_item(number: int) -> Any:
    return Happened(number) if number in done(WHERE[-1]) else Absent


def done(folder: Path) -> Counter[int]:
    log = folder / "items"
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


@STORES
def test_of_1000_items_killed_anywhere_only_what_was_not_done_is_done(place):
    folder = place.directory / "flows"
    folder.mkdir()
    (folder / "many.flow.yaml").write_text(MANY)
    WHERE.append(place.directory)

    def run(when: str, number: int) -> int:
        def work(_: Child) -> None:
            DYING.clear()
            DYING[when] = number
            load_flows(place.app(), folder)["many"](1)

        return Child(work).end()

    counts = [0]
    for number, when in ((0, "before"), (1, "after"), (250, "before"), (500, "after"), (998, "before"), (999, "after")):
        assert run(when, number) == -signal.SIGKILL
        pass_time(place, LEASE + 1)
        counts.append(len(done(place.directory)))
    assert counts == sorted(counts) and counts[3] < 300 < counts[4] < 600
    with place.app() as app:
        assert load_flows(app, folder)["many"](1) == ITEMS
    assert done(place.directory) == Counter(range(ITEMS))
