"""View-models of pages: data in, data out."""

import msgspec
import pytest
from msgspec import Raw

from twiceproof.claims.duplicates import OTHERS, Blocked, RecentlyBlocked
from twiceproof.flows.history.run_view import MoveShape, RunShape, StepShape
from twiceproof.flows.waits.records import Approval
from twiceproof.flows.workers.presence import WorkerShape
from twiceproof.outbox.queries import MessageShape
from twiceproof.server.ui import listing
from twiceproof.server.ui.listing import active_filters
from twiceproof.server.ui.pages.approvals import left_of, shown_fields
from twiceproof.server.ui.pages.duplicates import blocked_rows
from twiceproof.server.ui.pages.home import KINDS, line_of, repeats_tile, stuck_tile, worker_tile
from twiceproof.server.ui.pages.messages import acts_of
from twiceproof.server.ui.pages.review import grouped
from twiceproof.server.ui.pages.run import choices_of, moves_of, ordered, time_line
from twiceproof.server.ui.pages.runs import row_of
from twiceproof.server.ui.pages.workers import missing_worker


def step(name, state="done", order=0, began_at=None, took=None, recorded_at=0.0):
    return StepShape(
        name=name,
        state=state,
        repeat="safe",
        starts=1,
        order=order,
        began_at=began_at,
        recorded_at=recorded_at,
        took=took,
        not_before=None,
        result_kept=False,
        result=None,
        spill=None,
        fault=None,
        reason="",
        settled=None,
        external="",
    )


def run(key="order:1", state="review", reason="why", updated_at=10.0, flow="sync"):
    return RunShape(
        run=f"run_{key}",
        flow=flow,
        version="1",
        key=key,
        tenant="default",
        state=state,
        lapsed=False,
        reason=reason,
        attempt=1,
        owner="",
        correlation="",
        link="",
        created_at=1.0,
        updated_at=updated_at,
        age=1.0,
        due_at=None,
    )


def command(*words):
    return " ".join(words)


def test_steps_that_are_not_done_come_first():
    steps = [step("a", order=1), step("b", "failed"), step("c", order=2), step("d", "unknown"), step("e", "started")]
    assert [one.name for one in ordered(steps)] == ["d", "b", "e", "a", "c"]


def test_the_time_line_reaches_from_the_first_start_to_the_last_end():
    bars, ticks = time_line([step("a", began_at=100.0, took=1.0), step("b", "failed", began_at=101.0, took=3.0)], 500.0)
    assert (bars["a"].x, bars["a"].width, bars["b"].x, bars["b"].width) == (0.0, 250.0, 250.0, 750.0)
    assert [(tick.x, tick.text) for tick in ticks][-1] == (1000.0, "4.0 s")
    assert bars["a"].label == "began 0 ms after the first, took 1.0 s"


def test_a_step_without_an_end_reaches_to_now():
    bars, _ = time_line([step("a", began_at=0.0, took=1.0), step("b", "started", began_at=1.0)], 4.0)
    assert (bars["b"].x, bars["b"].width, bars["b"].label) == (250.0, 750.0, "no end on record")


def test_bars_stay_within_the_line_and_are_never_invisible():
    steps = [step("a", began_at=0.0, took=100_000.0), *(step(f"s{n}", began_at=99_999.9, took=0.0) for n in range(3))]
    bars, _ = time_line(steps, 100_000.0)
    assert all(bar.width >= 4.0 and bar.x + bar.width <= 1000.0 for bar in bars.values())


def test_steps_without_a_start_on_record_have_no_bar():
    assert time_line([step("a")], 1.0) == ({}, [])


SETTLE = ("review", "settle", "sync/order:1")


@pytest.mark.parametrize(
    ("words", "value", "needs_result"),
    [
        (("--happened", "--result", "JSON"), {"verdict": "happened"}, True),
        (("--happened", "--result", "null"), {"verdict": "happened", "result": "null"}, False),
        (("--happened", "--evidence", "7:mail"), {"verdict": "happened", "evidence": "7:mail"}, False),
        (("--step", "mail", "--did-not-happen"), {"step": "mail", "verdict": "did-not-happen"}, False),
        (("--undo",), {"verdict": "undo"}, False),
        (("--undo", "--did-not-happen"), {"verdict": "undo", "did": False}, False),
        (("--undo", "--happened", "--result", "JSON"), {"verdict": "undo", "did": True}, True),
        (("--abandon",), {"verdict": "abandon"}, False),
    ],
)
def test_a_settling_move_becomes_a_choice(words, value, needs_result):
    (choice,) = choices_of([MoveShape("If so:", (*SETTLE, *words))], command)
    assert (msgspec.json.decode(choice.value), choice.needs_result) == (value, needs_result)
    assert (choice.why, choice.command) == ("so", " ".join((*SETTLE, *words)))


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("If pay did not happen, and may be tried again:", "pay did not happen, and may be tried again"),
        ("To undo what is done, and stop:", "Undo what is done, and stop"),
    ],
)
def test_a_choice_is_what_a_person_says_by_it(why, shown):
    (choice,) = choices_of([MoveShape(why, (*SETTLE, "--abandon"))], command)
    assert choice.why == shown


def test_other_moves_are_acts_links_or_advice():
    moves = [
        MoveShape("Leave:", (*SETTLE, "--abandon")),
        MoveShape("Again:", ("runs", "retry", "sync/order:1")),
        MoveShape("See:", ("approvals", "show", "apr_1")),
        MoveShape("Wait."),
    ]
    assert [(one.why, one.action, one.href) for one in moves_of(moves, command)] == [
        ("Again", "retry", ""),
        ("See", "approval", "/approvals/apr_1"),
        ("Wait.", "", ""),
    ]


def test_runs_in_review_are_grouped_by_flow_and_reason():
    groups = grouped([run("1"), run("2", reason="other"), run("3", updated_at=2.0), run("4", flow="buy")])
    assert (groups[0].flow, groups[0].reason, len(groups[0].rows), groups[0].oldest) == ("sync", "why", 2, 2.0)
    assert len(groups) == 3


def test_attention_counts_alike_reasons_and_knows_the_oldest():
    line = line_of(KINDS[0], [(5.0, "a"), (3.0, "a"), (4.0, "b"), (9.0, "")])
    assert (line.count, line.oldest, line.why) == (4, 3.0, ("a (2)", "b"))
    nothing = line_of(KINDS[0], [])
    assert (nothing.count, nothing.oldest, nothing.nothing) == (0, None, "no outcome is unknown")


def test_attention_says_nothing_only_where_everything_was_looked_through():
    """Of a small tenant among large ones, what failed may lie beyond what one page reads."""
    none, some, capped = (line_of(KINDS[2], [(5.0, "a")] * count, more=True) for count in (0, 3, 1_001))
    assert (none.figure, none.nothing) == ("0+", "none among the latest of all tenants; the list looks further back")
    assert (some.figure, capped.figure, line_of(KINDS[2], []).figure) == ("3+", "1,000+", "0")


def test_every_filter_that_is_on_is_a_chip_that_can_be_removed():
    chips = active_filters("/runs", {"flow": "sync", "state": "failed", "after": "x"}, ("flow", "state", "key"))
    assert [(chip.name, chip.value, chip.without) for chip in chips] == [
        ("flow", "sync", "/runs?state=failed"),
        ("state", "failed", "/runs?flow=sync"),
    ]
    assert active_filters("/runs", {"flow": "a&b"}, ("flow",))[0].without == "/runs"


def test_a_long_reason_is_cut_in_lists():
    assert len(row_of(run(reason="x" * 10_000)).reason) == 300
    assert listing.text("x" * 1_000).text == "x" * 300 + "…"


def test_repeats_name_their_door_and_lead_to_their_key():
    rows = blocked_rows([Blocked("stripe", "sync", "a/b", 3, 1.0, 2.0), Blocked("", "sync", OTHERS, 9, 1.0, 2.0)])
    assert [(row.cells[2].href, row.cells[3].text) for row in rows] == [("/keys/sync/a%2Fb", "stripe"), ("", "call")]


@pytest.mark.parametrize(
    ("state", "verbs"), [("parked", ["Resend", "Drop"]), ("pending", ["Drop"]), ("sent", []), ("dropped", [])]
)
def test_a_message_offers_what_its_state_allows(state, verbs):
    one = MessageShape("k", "topic", "main", "", state, 1.0, 2.0)
    assert [form.verb for form in acts_of(one, command)] == verbs


def test_what_is_to_be_approved_is_shown_field_by_field():
    fields = dict(shown_fields(Raw(b'{"total": 1.10, "note": "plain\\u202e text", "lines": [1, 2]}')))
    assert (fields["total"].text, fields["note"].text) == ("1.10", "plain\u202e text")
    assert fields["lines"].text == "[\n  1,\n  2\n]"
    assert shown_fields(Raw(b"7.0"))[0][1].text == "7.0"


def test_an_approval_says_how_much_time_is_left():
    one = Approval("apr_1", "charge", "buy", "1", "run_1", "open", {}, "d", 1.0, 100.0, None)
    assert (left_of(one, 40.0), left_of(one, 101.0)) == ("1 min left", "its time is over")
    assert left_of(msgspec.structs.replace(one, until=None), 1.0) == "no limit"


def worker(*flows, gone=False):
    return WorkerShape("w1", "host", 1, 2, flows, "0.1", 1.0, 2.0, gone)


def test_a_run_that_is_due_and_that_no_live_worker_has_says_so():
    queued = msgspec.structs.replace(run(state="queued"), due_at=5.0)
    assert missing_worker(queued, [], 10.0) == "No live worker has sync@1: it stays here until one comes."
    assert missing_worker(queued, [worker("sync@1", gone=True)], 10.0).startswith("No live worker has sync@1")
    assert missing_worker(queued, [worker("buy@1", "sync@2")], 10.0).endswith("those that are there have sync@2.")
    assert missing_worker(queued, [worker("sync@1")], 10.0) == ""
    assert missing_worker(queued, [], 4.0) == ""  # it is not due yet


def test_tiles_say_how_much_was_repeated_and_what_is_stuck():
    rows = [Blocked("stripe", "sync", "a", 3, 1.0, 2.0), Blocked("", "sync", "b", 1, 1.0, 2.0)]
    blocked = repeats_tile(RecentlyBlocked(rows, more=False, by_hour={1: 4}), 2 * 3_600.0)
    assert (blocked.figure, blocked.text) == ("4", "of 2 keys: answered, nothing done twice")
    assert [bar.tone for bar in blocked.bars].count("good") == 1
    assert repeats_tile(RecentlyBlocked([], more=False), 0.0).figure == "0"
    stuck = stuck_tile({"sync@1": 2}, 1, 0)
    assert (stuck.figure, stuck.text) == ("3", "2 of sync@1: no worker has it; 1 whose holder is gone")
    assert stuck_tile({}, 0, 0).figure == "none"
    assert (
        worker_tile([worker("a@1", "b@1", "c@1", "d@1")], 12.0).text
        == "last report 10 s ago · a@1, b@1, c@1 and 1 more"
    )
    assert worker_tile([worker(gone=True)], 12.0).figure == "none"


@pytest.mark.parametrize(
    ("found", "href"),
    [
        (({"sync@1": 1}, 1, 1), "/flows"),
        (({}, 1, 1), "/runs?state=held"),
        (({}, 0, 2), "/claims?state=held"),  # calls under @app.once and of the claim service are no runs
    ],
)
def test_what_is_stuck_leads_to_a_list_that_has_it(found, href):
    assert stuck_tile(*found).href == href


def test_hours_are_bars_as_high_as_their_share_and_the_present_one_is_last():
    bars = listing.hour_bars({100: 10, 99: 5, 70: 99}, 100.5 * 3_600)
    assert len(bars) == 24
    assert [(bar.height, bar.y, bar.tone) for bar in bars[-3:]] == [
        (2.0, 98.0, "none"),
        (50.0, 50.0, "good"),
        (100.0, 0.0, "good"),
    ]
    assert bars[-1].label == "10 from 1970-01-05 04:00:00 UTC"
    assert max(bar.x + bar.width for bar in bars) <= 1_000
    assert listing.hour_bars({}, 100.0) == []


def test_raw_results_are_not_decoded():
    shown = step("a")
    assert msgspec.structs.replace(shown, result=Raw(b"1.10")).result == Raw(b"1.10")
