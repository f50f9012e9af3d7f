"""What a page costs the store, counted: however much the ledger holds, whatever the filter.

`make bench` opens the same pages over a million runs; here there are more of each kind than a page may read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bench.fill import insert_postgres, insert_sqlite
from bench.ledgers import FLOW, ReadCounter, declare_shop, ledger_rows, make_templates
from bench.sections.dashboard import LocalPages, pages_of
from msgspec import structs

from tests.acceptance.dashboards import Post
from twiceproof import App
from twiceproof.claims.acts import ACT_KIND
from twiceproof.claims.claim import body_of, space_of
from twiceproof.effects.incidents import FINDING_KIND
from twiceproof.flows.engine.ledger import STEP_KIND
from twiceproof.flows.waits.records import APPROVAL_KIND
from twiceproof.inbound.dead_letters import DEAD_LETTER_KIND, DeadLetter
from twiceproof.outbox.message import PARKED, SENT, Message, message_address
from twiceproof.reconcile.findings import NOTE, OPEN, ReconcileNote, StoredFinding, space_for
from twiceproof.records import SELF, Address, Insert
from twiceproof.server.app import make_application

MOST = 5_000  # records for a page
RUNS = 12_000
EVEN = {"done": 20, "failed": 20, "waiting": 20, "queued": 20, "review": 20}
OTHERS = 6_000  # of everything else
LONG = "shop:order:1000003"  # a run that has more steps than a page may read


def declared(app: App):
    flow = declare_shop(app)
    app.webhook(Post(), secret="s3cret", name="shop", start=flow)

    @app.once(key="ship:{order}", repeat="never")
    def ship(order):
        return order

    return ship


def the_record(app, kind, of=lambda record: True):
    found = [record for record in app.store.scan(kind, limit=1_000).block().records if of(record)]
    return found[0]


def like(record, old, new):
    """The same record under another name."""
    at = Address(*(part.replace(old, new) for part in (record.at.space, record.at.kind, record.at.key)))
    return Insert(at, record.body.replace(old, new), record.state)


def others(app: App) -> Iterator[Insert]:
    """More of every other kind of record than a page may read."""
    claim = the_record(app, "claim", lambda record: record.at.space.endswith("ship:mark"))
    act = the_record(app, ACT_KIND)
    asked = the_record(app, APPROVAL_KIND)
    step = the_record(app, STEP_KIND, lambda record: record.state == "done")
    run = f"default/{FLOW}/{LONG}"
    for nth in range(OTHERS):
        for state in ("done", "review", "held"):
            yield structs.replace(like(claim, "mark", f"{state}{nth}"), state=state)
        yield structs.replace(like(claim, "mark", f"e{nth}"), at=Address(f"default/hook.shop/e{nth}", "claim", SELF))
        yield structs.replace(like(act, "", ""), at=Address(act.at.space, ACT_KIND, f"a{nth}"))
        yield structs.replace(like(step, "", ""), at=Address(run, STEP_KIND, f"item[{nth}]"))
        yield structs.replace(like(asked, "", ""), at=Address(asked.at.space, APPROVAL_KIND, f"charge{nth}"))
        letter = DeadLetter(f"ltr_{nth}", "shop", "no event", "e30=", "d", 2, received_at=float(nth))
        yield Insert(
            Address(space_of("default", "hook@dead-letters", letter.id), DEAD_LETTER_KIND, SELF),
            body_of(letter),
            "kept",
        )
        message = Message("orders", f"m{nth}", "hook:shop", "main", "digest", "{}")
        at = message_address("default", message.target, message.key)
        yield Insert(at, body_of(message), PARKED if nth % 2 else SENT)
        found = StoredFinding(f"f{nth}", "default", "daily", "gone", f"k{nth}", (), "it is gone", {}, 1.0, 1.0, 1.0)
        yield Insert(Address(space_for("default", "daily"), FINDING_KIND, found.id), body_of(found), OPEN)
    yield Insert(Address(space_for("default", "daily"), NOTE, SELF), body_of(ReconcileNote("daily")))


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def ledger(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("large")
    url, insert = f"sqlite:///{directory}/shop.db", insert_sqlite
    if request.param == "postgres":
        url, insert = request.getfixturevalue("postgres_server").create_database(), insert_postgres
    App(url).close()
    insert(url, ledger_rows(make_templates(directory), RUNS, EVEN), RUNS * 100)
    with App(url) as app:
        ship = declared(app)
        ship("mark"), ship("mark")
        app.settle_run(next(run.run for run in app.review(limit=1)), "abandon", by="ann")
        app.store.write_each([[write] for write in others(app)]).block()
        app.tally.flush()
        pages = LocalPages(make_application(app))
        yield pages, ReadCounter(app.store.engine)
        pages.close()


def more_pages():
    """Those that only this ledger has something for."""
    found = ["/webhooks/shop", "/letters/ltr_7", "/messages/m7", "/messages/m7?to=hook%3Ashop", "/messages?to=nowhere"]
    found += ["/messages?state=all&topic=other", "/findings?state=all", "/findings/f7", "/claims?operation=other"]
    found += ["/approvals?flow=other", f"/approvals?flow={FLOW}"]
    found += ["/claims?state=review", "/claims?operation=ship&state=done", "/acts?by=nobody", "/duplicates?since=7d"]
    key = LONG.replace(":", "%3A")
    return [*found, f"/runs/{FLOW}%2F{key}", f"/keys/{FLOW}/{key}", f"/runs/{FLOW}%2F{key}?steps=unknown"]


def test_no_page_reads_more_than_its_limit_however_much_there_is(ledger):
    pages, counter = ledger
    read = {}
    for path in (*pages_of(pages, RUNS), *more_pages()):
        counter.clear()
        status, body, _ = pages.get(path)
        assert status in (200, 303, 404), (path, body)
        read[path] = counter.records
    assert {path: count for path, count in read.items() if count > MOST} == {}
    assert max(read.values()) > 1_000  # or it would not count


def test_pages_of_runs_meet_each_run_once_on_the_way_back_too(ledger):
    pages, counter = ledger
    for query in ("limit=50", f"limit=50&flow={FLOW}", "limit=50&state=failed"):
        seen, first, after = [], [], ""
        for _ in range(6):
            counter.clear()
            page = json.loads(pages.get(f"/v1/runs?{query}{after}")[1])
            assert counter.records <= MOST
            seen += [run["run"] for run in page["runs"]]
            first = first or seen[:]
            after, before = f"&after={page['after']}", page["before"]
        assert len(seen) == len(set(seen)) == 300
        for _ in range(5):
            page = json.loads(pages.get(f"/v1/runs?{query}&after={before}")[1])
            before = page["before"]
        assert [run["run"] for run in page["runs"]] == first


@pytest.mark.parametrize("name", ["review", "failed"])
def test_a_counter_ends_at_a_thousand(ledger, name):
    text = ledger[0].get("/")[1].decode()
    line = text[text.index(f'data-line="{name}"') :]
    assert line[line.index('big"') :].partition(">")[2].partition("<")[0] == "1,000+"
