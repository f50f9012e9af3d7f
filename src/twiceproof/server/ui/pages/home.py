"""What needs attention: counts up to a cap, the oldest of each kind, and the latest runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ....claims.claim import CLAIM, FAILED, HELD, REVIEW, RUN, parse_space
from ....claims.duplicates import RecentlyBlocked, recently_blocked
from ....claims.states import is_lapsed
from ....claims.views import reviewed_claims
from ....flows.history.queries import Filter, list_runs
from ....flows.waits.approvals import find_open
from ....flows.workers.presence import WorkerShape, list_workers, stranded
from ....inbound.dead_letters import list_letters
from ....inbound.reply import Reply
from ....operations import Operation, await_
from ....reconcile.findings import OPEN, list_findings
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec
from ..formatting import CAPPED, counted, span
from ..listing import HourBar, hour_bars
from .runs import row_of

__all__ = ["PAGES", "AttentionLine", "Tile", "line_of", "repeats_tile", "stuck_tile", "worker_tile"]

LATEST = 12
REASONS = 3  # that a line names
FEWER = 200  # of what is counted less far, because each is larger or is read in two
LONGEST = 140  # characters of a reason
DAY = 86_400.0


class AttentionLine(Struct, frozen=True):
    """One kind of thing that waits for a person."""

    name: str
    sign: str
    word: str
    tone: str
    count: int
    most: int
    oldest: float | None
    why: tuple[str, ...]
    href: str
    verb: str
    nothing: str = "nothing"
    more: bool = False  # other tenants' are between: there may be others, further back

    @property
    def figure(self) -> str:
        return counted(self.count, self.most) + ("+" if self.more and self.count <= self.most else "")


class Tile(Struct, frozen=True):
    title: str
    figure: str
    text: str
    href: str
    tone: str = ""
    bars: Sequence[HourBar] = ()


class AttentionKind(Struct, frozen=True):
    name: str
    sign: str
    word: str
    tone: str
    href: str
    verb: str
    nothing: str
    most: int  # where counting ends


KINDS = (
    AttentionKind("review", "?", "in review", "ask", "/review", "settle", "no outcome is unknown", CAPPED),
    AttentionKind("approvals", "◷", "approvals", "ask", "/approvals", "decide", "no pending approvals", FEWER),
    AttentionKind("failed", "✕", "failed", "bad", "/runs?state=failed", "look", "no run has failed", CAPPED),
    AttentionKind("letters", "✉", "dead letters", "ask", "/webhooks", "look", "no delivery was put aside", FEWER),
    AttentionKind("findings", "⚠", "findings", "ask", "/findings", "look", "no reconciliation found anything", FEWER),
)
Waiting = tuple[float, str]  # since when something waits, and why


FURTHER_BACK = "none among the latest of all tenants; the list looks further back"


def line_of(kind: AttentionKind, found: Sequence[Waiting], *, more: bool = False) -> AttentionLine:
    """Return the line of one kind. `more`: not everything was looked through."""
    reasons = Counter(why for _, why in found if why)
    why = tuple(f"{text} ({count})" if count > 1 else text for text, count in reasons.most_common(REASONS))
    oldest = min((at for at, _ in found), default=None)
    return AttentionLine(
        kind.name,
        kind.sign,
        kind.word,
        kind.tone,
        len(found),
        kind.most,
        oldest,
        why,
        kind.href,
        kind.verb,
        FURTHER_BACK if more else kind.nothing,
        more,
    )


def _runs(page: PageRequest, state: str) -> Operation[tuple[list[Waiting], bool]]:
    """Return the runs in a state, up to the cap, and whether there may be more. Beyond the cap, the oldest is asked for
    by itself."""
    store, most = page.store, CAPPED + 1
    listed = yield from list_runs(store, Filter(page.tenant), (state,), limit=most, most_read=most)
    found = listed.runs
    waiting = [(run.updated_at, f"{run.flow}: {run.reason}"[:LONGEST]) for run in found]
    if len(found) == most:
        first = (yield from store.scan(RUN, state=state, newest=False, limit=1)).records
        waiting += [(one.updated_at, "") for one in first if parse_space(one.at.space).tenant == page.tenant]
    return waiting, listed.after is not None


def _claims(page: PageRequest) -> Operation[list[Waiting]]:
    found = yield from reviewed_claims(page.store, page.tenant)
    return [(one.updated_at, f"{one.operation}: {one.reason}"[:LONGEST]) for one in found]


def _lines(page: PageRequest) -> Operation[list[AttentionLine]]:
    store, tenant, most = page.store, page.tenant, FEWER + 1
    review, more_review = yield from _runs(page, REVIEW)
    failed, more_failed = yield from _runs(page, FAILED)
    asked = yield from find_open(store, f"{tenant}/", most, most_read=most)
    aside = yield from list_letters(store, tenant, limit=most)
    differ = yield from list_findings(store, tenant, states=(OPEN,), limit=most, most_read=most)
    found: dict[str, tuple[list[Waiting], bool]] = {
        "review": ([*review, *(yield from _claims(page))], more_review),
        "approvals": ([(one.asked_at, f"{one.flow}: {one.name}") for one in asked.approvals], asked.more),
        "failed": (failed, more_failed),
        "letters": (
            [(one.received_at, f"{one.hook}: {one.reason}"[:LONGEST]) for one in aside.letters],
            aside.after is not None,
        ),
        "findings": ([(one.opened_at, f"{one.reconciliation}: {one.check}") for one in differ], False),
    }
    return [line_of(kind, found[kind.name][0], more=found[kind.name][1]) for kind in KINDS]


# -- what else there is to know ------------------------------------------------------------------


def repeats_tile(found: RecentlyBlocked, now: float) -> Tile:
    total = sum(one.count for one in found.rows)
    if not total:
        return Tile("Repeats blocked today", "0", "Nothing came twice.", "/duplicates")
    figure = f"{total:,}{'+' if found.more else ''}"
    keys = len(found.rows)
    text = f"of {keys:,} {'key' if keys == 1 else 'keys'}: answered, nothing done twice"
    return Tile("Repeats blocked today", figure, text, "/duplicates?since=24h", "good", hour_bars(found.by_hour, now))


def stuck_tile(stranded: Mapping[str, int], runs: int, claims: int) -> Tile:
    """`stranded`: due runs that no live worker serves, by flow. `runs` and `claims`: those whose holder is gone."""
    waiting, lapsed = sum(stranded.values()), runs + claims
    if not waiting + lapsed:
        return Tile("Stuck", "none", "Every run that is due has a worker.", "/flows")
    told = [f"{count:,} of {name}: no worker has it" for name, count in list(stranded.items())[:REASONS]]
    told += [f"{lapsed:,} whose holder is gone"] if lapsed else []
    href = "/flows" if waiting else "/runs?state=held" if runs else "/claims?state=held"
    return Tile("Stuck", f"{waiting + lapsed:,}", "; ".join(told), href, "ask")


def worker_tile(workers: Sequence[WorkerShape], now: float) -> Tile:
    live = [worker for worker in workers if not worker.gone]
    if not live:
        text = "No worker has reported lately: waiting runs are not continued."
        return Tile("Workers", "none", text, "/workers", "ask")
    since = now - max(worker.last_heartbeat for worker in live)
    seen = f"{span(since)} ago" if since >= 1.0 else "just now"
    flows = sorted({flow for worker in live for flow in worker.flows})
    more = f" and {len(flows) - REASONS} more" if len(flows) > REASONS else ""
    text = f"last report {seen} · {', '.join(flows[:REASONS]) or 'no flows'}{more}"
    return Tile("Workers", str(len(live)), text, "/workers")


def _tiles(page: PageRequest) -> Operation[list[Tile]]:
    store = page.store
    blocked = yield from recently_blocked(store, page.tenant, page.now, since=page.now - DAY, limit=CAPPED)
    tiles = [repeats_tile(blocked, page.now)]
    if page.is_operator:  # workers serve all tenants
        lapsed = []
        for kind in (RUN, CLAIM):
            held = (
                yield from store.scan(kind, state=HELD, newest=False, limit=FEWER)
            ).records  # the oldest: those that are stuck
            lapsed.append(sum(is_lapsed(one, page.now) for one in held))
        tiles.append(stuck_tile((yield from stranded(store, most=FEWER)), *lapsed))
        tiles.append(worker_tile((yield from list_workers(store)), page.now))
    return tiles


async def attention(page: PageRequest) -> Reply:
    lines = await await_(_lines(page))
    latest = await await_(list_runs(page.store, Filter(page.tenant), limit=LATEST, most_read=FEWER))
    tiles = await await_(_tiles(page))
    return page.show("attention.html", "Attention", lines=lines, tiles=tiles, runs=[row_of(run) for run in latest.runs])


PAGES = (PageSpec("GET", "/", Scope.READ, attention, "home"),)
