"""Messages in great numbers: those that have passed through a store, what they leave behind and what claims cost
afterwards; and a backlog of one tenant, beside which another one sends.

Each message is sent, published, marked and swept, as in production, where `keep_sent` is longer. The server has
PostgreSQL's own settings for autovacuum.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import psycopg

from twiceproof import App
from twiceproof.brokers.base import OutgoingMessage, Publication
from twiceproof.claims.retention import sweep
from twiceproof.operations import block

from ..callers import One
from ..findings import Findings
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots
from ..series import Ratio, spread
from ..sites import Site
from ..waiting import fill_undelivered
from .messages import Everything, Ours, race

__all__ = ["measure_backlog", "measure_passed"]

TABLE = "twiceproof.twiceproof_records"
SIZE = f"SELECT pg_total_relation_size('{TABLE}')"
VACUUMS = "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'twiceproof_records'"
KEPT = "2s"  # how long a sent message is remembered here
AT_ONCE, PER_SWEEP = 1_000, 5_000


def measure_passed(site: Site, plan: Plan, progress: Progress) -> Findings:
    with ExitStack() as stack:
        url = site.fresh()
        fresh, used = _app(site.fresh(), stack), _app(url, stack)
        sizes = _pass(used, url, plan.passed, progress)
        quarter, end = sizes[len(sizes) // 4], sizes[-1]
        part = f"{site.name}, {plan.passed:,} messages have passed"
        pair = [Contender("claims in a new store", _claims(fresh)), Contender("after the messages", _claims(used))]
        findings = race(part, "claims after messages", pair, Slots(plan.rounds, plan.slot), progress)
        growth = end / quarter
        findings.lines.append(line("size after messages", part, Ratio(growth, growth, growth)))
        vacuums = _ask(url, VACUUMS)
        sizes_text = f"{quarter / 1e6:.0f} MB after a quarter of them, {end / 1e6:.0f} MB after all"
        findings.notes.append(f"{part}: {sizes_text}, {vacuums} autovacuums.")
    return findings


def _app(url: str, stack: ExitStack) -> App:
    app = App(url)
    stack.callback(app.close)
    return app


def _claims(app: App) -> One:
    keys = map(str, itertools.count())

    @app.once(key="{order}")
    def charge(order: str) -> str:
        return order

    return One(lambda _: charge(next(keys)))


def _pass(app: App, url: str, count: int, progress: Progress) -> list[int]:
    """Return the table's size from time to time."""
    ours = Ours.on(app, keep_sent=KEPT)
    sizes = []
    with progress.heat(f"{count:,} messages pass", count // PER_SWEEP) as step:
        for done in range(AT_ONCE, count + 1, AT_ONCE):
            ours.fill(AT_ONCE)
            app.relay().run(until_idle=True)
            if done % PER_SWEEP == 0:
                _sweep(app)
                sizes.append(_ask(url, SIZE))
                step()
    time.sleep(2.0)
    _sweep(app)
    return [*sizes, _ask(url, SIZE)]


def _sweep(app: App) -> None:
    """Until nothing is left to be forgotten."""
    while block(sweep(app.store)).forgotten:
        pass


def _ask(url: str, sql: str) -> Any:
    with psycopg.connect(url, autocommit=True) as db:
        (found,) = db.execute(sql.encode()).fetchone()  # type: ignore[misc]
    return found


# -- a backlog -----------------------------------------------------------------------------------

QUIET = 10  # messages of the other tenant, one after the other


class Noting(Everything):
    """Tells when a message of the other tenant is published."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        if any(message.key.startswith("quiet") for message in messages):
            self.seen.set()
        return super().publish(messages, patience)


def measure_backlog(site: Site, plan: Plan, progress: Progress) -> Findings:
    """While a relay works on one tenant's messages, another tenant sends one now and then."""
    with ExitStack() as stack:
        target = Noting()
        ours = Ours(site, stack, target)
        ours.fill(1)
        (first,) = ours.app.store.scan("message").block().records
        fill_undelivered(site, ours.url, first, plan.undelivered)
        relay = ours.app.relay()
        relay.start()
        taken = []
        for number in range(QUIET):
            target.seen.clear()
            began = time.perf_counter()
            ours.app.of("quiet").send("orders.paid", {}, key=f"quiet-{number}")
            target.seen.wait(60)
            taken.append(time.perf_counter() - began)
            time.sleep(0.2)
        relay.drain()
        relay.join(30)
    part = f"{site.name}, behind {plan.undelivered:,} messages of another tenant"
    progress.say(f"{part}: done")
    return Findings(lines=[line("message beside a backlog", part, spread(taken))])
