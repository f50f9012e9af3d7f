"""Scenes of F21: keys that a provider has forgotten, errors that it replays, requests that arrive late, and effects
whose process is killed again during recovery.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.contracts.effects.subjects import SUBJECTS
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers import Unavailable
from tests.servers.dovecot import Dovecot
from tests.servers.moto import moto_server
from tests.unit.flows.stage import Died, Stage
from tests.unit.prove.test_personalities import described
from twiceproof import Absent, App, Happened, NeedsReview, NotDone, OutcomeUnknown, Retry, StepFailed, Waiting
from twiceproof.effects import dataverse, http
from twiceproof.effects.providers import Provider
from twiceproof.effects.repeat import Declared, check
from twiceproof.prove.simulators import DataverseSimulator
from twiceproof.prove.worlds.personalities import ProviderWorld

WINDOWS, STICKY, LATE, UPSERTS, KILLS = 120, 60, 60, 25, 300
LONGEST_WINDOW = 86_400.0  # a longer one outlives the retries
ARRIVES = 20.0  # seconds until a late request is carried out
MOST_WAITS = 200
FIND = http.find("GET /search?reference={effect_key}", at="items[0]")
# Each kill has a destination of its own. A short run has those that need no server.
BLOCKS = list(SUBJECTS)
ALONE = [name for name in BLOCKS if "simulated" in name or "SQLite" in name or name.startswith("files.")]


def flow_of(app: App, make: Callable[[], Any], retry: Retry | None = None) -> Any:
    """A flow of one effect."""
    act = app.effect(name="act", retry=retry)(lambda order: make())

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> Any:
        return act(order)

    return flow


def ended(flow: Any, wait: Callable[[], Any]) -> Any:
    """Call a flow until it ends; "review" if a person must decide. `wait` lets time pass."""
    for _ in range(MOST_WAITS):
        try:
            return flow(17)
        except NeedsReview:
            return "review"
        except StepFailed:
            return "failed"
        except Waiting:
            wait()
    return "no end"


# -- providers -----------------------------------------------------------------------------------


def forgotten_keys(trial: Trial, finding: Finding, worlds: dict[str, ProviderWorld], rows: list[Provider]) -> None:
    """Each attempt is within the window after the previous one, but the third is outside of the window after the
    first.
    """
    short = [row for row in rows if row.window_seconds <= LONGEST_WINDOW]
    times = trial.times(WINDOWS, len(short))
    for number in range(times):
        row = short[number % len(short)]
        done = _third_attempt(worlds[row.id], row, looks=trial.dice("window", number).random() < 0.5)
        if done != 1:
            finding.violated(f"{row.id}, seed {trial.seed}, window {number}: {done} effects, its key was forgotten")
        finding.hit("a window that is over")
    finding.reach("windows over since the first start", times, times)


def _third_attempt(world: ProviderWorld, row: Provider, *, looks: bool) -> int:
    options = {"look": FIND} if looks else {}
    world.reset()
    world.lose_at(1, "silence")
    world.lose_before(2)
    with contextlib.closing(Stage()) as stage:

        def wait() -> None:
            stage.clock.advance(0.6 * row.window_seconds)
            world.advance(0.6 * row.window_seconds)

        pause = 0.3 * row.window_seconds
        retry = Retry(first=pause, most=pause, within="30d")
        ended(flow_of(stage.process(), lambda: described(row, **options), retry), wait)
    return sum(world.look().values())


def replayed_errors(trial: Trial, finding: Finding, worlds: dict[str, ProviderWorld], rows: list[Provider]) -> None:
    """A 500 that the provider replays for the same key: requested at most twice, then checked, or left to a person."""
    sticky = [row for row in rows if row.sticky]
    times = trial.times(STICKY, 2 * len(sticky))
    for number in range(times):
        row, dice = sticky[number % len(sticky)], trial.dice("sticky", number)
        looks, world = dice.random() < 0.5, worlds[row.id]
        world.reset()
        world.fail(1, row.sticky[0], carried_out=True)
        with contextlib.closing(Stage()) as stage:
            effect = described(row, **({"look": FIND} if looks else {}))
            result = ended(flow_of(stage.process(), lambda: effect), lambda: stage.clock.advance(60))  # noqa: B023
        asked = sum(one.startswith("POST") for one in world.exchanges())
        right = result["id"] == "r_1" if looks and isinstance(result, dict) else result == "review" and not looks
        if asked > 2 or not right:
            finding.violated(f"{row.id}, seed {trial.seed}, error {number}: asked {asked} times, {result!r}")
        finding.hit("an error that is replayed")
    finding.reach("errors replayed", times, times)


# -- late requests -------------------------------------------------------------------------------


class LateRequest:
    """An effect whose first request is carried out later than its time-out: until then, a look does not find it."""

    name, result_type = "late request", Any

    def __init__(self, stage: Stage, arrives: float) -> None:
        self._stage = stage
        self._arrives = arrives
        self._sent: list[float] = []

    @property
    def repeat(self) -> Declared:
        return check(self.look, settling=2 * ARRIVES)

    def describe(self) -> dict[str, Any]:
        return {"late": self._arrives}

    def done(self) -> int:
        return sum(at + self._arrives <= self._stage.clock.now() for at in self._sent)

    def perform(self, effect_key: str) -> Any:
        self._sent.append(self._stage.clock.now())
        raise OutcomeUnknown("no answer came")

    def look(self, effect_key: str) -> Any:
        return Happened("found") if self.done() else Absent()


def late_requests(trial: Trial, finding: Finding) -> None:
    times = trial.times(LATE, 4)
    for number in range(times):
        with contextlib.closing(Stage()) as stage:
            effect = LateRequest(stage, trial.dice("late", number).uniform(1, ARRIVES))
            result = ended(flow_of(stage.process(), lambda: effect), lambda: stage.clock.advance(1))  # noqa: B023
            stage.clock.advance(10 * ARRIVES)
            if (result, effect.done()) != ("found", 1):
                finding.violated(f"seed {trial.seed}, late {number}: {effect.done()} effects, {result!r}")
        finding.hit("a request that arrives late")
    finding.reach("requests that arrive late", times, times)


# -- blocks --------------------------------------------------------------------------------------


def upserts(trial: Trial, finding: Finding) -> None:
    """An upsert by alternate key creates a missing row, and changes it the next time."""
    times = trial.times(UPSERTS, 3)
    with DataverseSimulator({"shop_orders": ["shop_id"]}) as simulator:
        org = dataverse.environment(simulator.url, lambda: "token", timeout=5)
        for number in range(times):
            for total in (1, 2):
                effect = dataverse.upsert(org, "shop_orders", {"shop_id": f"A-{number}"}, {"shop_total": total})
                with contextlib.suppress(NotDone):
                    effect.perform(f"tp_{number:032x}")
        found = {row["shop_id"]: row["shop_total"] for row in simulator.rows("shop_orders")}
    if found != {f"A-{number}": 2 for number in range(times)}:
        finding.violated(f"{len(found)} rows of {times} upserts, such as {next(iter(found.items()), None)}")
    finding.reach("upserts of rows that are not there", times, times)


class Destinations(contextlib.ExitStack):
    """What a test gets as fixtures: fresh databases, and servers that are started at first use."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial
        self._known: dict[str, Any] = {}

    def getfixturevalue(self, name: str) -> Any:
        if name == "postgres_dsn":
            return self._trial.postgres.create_database()
        if name == "mariadb_url":
            return self._trial.mariadb.create_database()
        if name not in self._known:
            self._known[name] = getattr(self, f"_{name}")()
        return self._known[name]

    def _dovecot(self) -> Dovecot:
        return self.enter_context(Dovecot())

    def _s3_endpoint(self) -> str:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
        return self.enter_context(moto_server())

    def _s3_client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=self.getfixturevalue("s3_endpoint"), region_name="us-east-1")


def killed_blocks(trial: Trial, finding: Finding) -> None:
    """Killed at a commit, and its successor killed during recovery: one effect at the destination."""
    blocks = BLOCKS if trial.share >= 1 else ALONE
    kills, missing = trial.times(KILLS, len(blocks)), set[str]()
    with Destinations(trial) as destinations:
        for number in range(kills):
            name, dice = blocks[number % len(blocks)], trial.dice("block", number)
            try:
                told = _killed(trial, destinations, name, number, dice)
            except Unavailable as why:
                missing.add(f"{name}: {why}")
                continue
            if told:
                finding.violated(f"{name}, seed {trial.seed}, kill {number}: {told}")
            finding.hit("a block killed and killed again")
    finding.skipped.extend(sorted(missing))
    finding.reach("blocks killed", kills, kills)


def _killed(trial: Trial, destinations: Destinations, name: str, number: int, dice: random.Random) -> str:
    folder = trial.directory / f"block{number}"
    folder.mkdir()
    patch = pytest.MonkeyPatch()
    at = (dice.randint(1, 4), dice.randint(1, 4), None)
    try:
        with SUBJECTS[name](destinations, folder, patch) as subject, contextlib.closing(Stage()) as stage:  # type: ignore[arg-type]
            result = _carried_through(stage, lambda: subject.effect, at, landed=dice.random() < 0.5)
            count = subject.count()
    finally:
        patch.undo()
    return (
        ""
        if count == 1 and result not in ("review", "failed", "no end")
        else f"{count} effects, {result!r}, killed at {at}"
    )


def _carried_through(stage: Stage, make: Callable[[], Any], kills: Iterable[int | None], *, landed: bool) -> Any:
    """Run it in processes that are killed, and finally in one that is not."""
    result: Any = "no end"
    for at in kills:
        try:
            result = ended(flow_of(stage.process(at, landed=landed), make), lambda: stage.clock.advance(60))
        except Died:
            stage.lapse()
    return result
