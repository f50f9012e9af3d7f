"""What a take decides, as a table: every state, alive or not, same or other payload, safe or never."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, structs

from twiceproof.claims.claim import (
    DONE,
    FAILED,
    HELD,
    REVIEW,
    Busy,
    Claim,
    Done,
    Failed,
    Fault,
    InReview,
    Mismatch,
    Spill,
    address_of,
    body_of,
    claim_of,
)
from twiceproof.claims.states import (
    EXPIRE,
    TRIM,
    AnswerOnly,
    BeginClaim,
    ClaimRequest,
    Lifetime,
    ParkClaim,
    decide,
    finish_times,
    is_expired,
    is_lapsed,
    kept_until,
    outcome_of,
)
from twiceproof.records import Insert, Record, Replace

NOW = 1_000.0
AT = address_of("default", "pay", "order:1")
CLEAN = Fault("NotDone", "refused", retryable=True)
BUG = Fault("ValueError", "no such customer")


def ask(**changes: Any) -> ClaimRequest:
    return structs.replace(
        ClaimRequest(at=AT, operation="pay", key="order:1", owner="ann", lease=30.0, fingerprint="1:same", run="run_1"),
        **changes,
    )


def record(
    state: str, *, until: float | None = None, queue: str = "", due: float | None = None, **claim: Any
) -> Record:
    body = {"fingerprint": "1:same", "run": "run_1", "attempt": 2, **claim}
    return Record(
        AT, body_of(Claim("pay", "order:1", "bob", **body)), state, "v7", 7, "n", 1.0, 990.0, until, queue, due
    )


LIVE = record(HELD, until=NOW + 10)
LAPSED = record(HELD, until=NOW - 10)
DONE_ = record(DONE, result=Raw(b'{"paid":1}'))
RETRYABLE = record(FAILED, fault=CLEAN)
FAILED_ = record(FAILED, fault=BUG)
IN_REVIEW = record(REVIEW, reason="nobody knows")
PAID = Done(AT, Raw(b'{"paid":1}'), None, "run_1", 990.0)


def test_a_free_key_is_taken_by_an_insert_that_draws_a_fence() -> None:
    assert decide(ask(), None, NOW) == BeginClaim(
        Insert(
            AT, body_of(Claim("pay", "order:1", "ann", fingerprint="1:same", run="run_1")), HELD, draw=True, lease=30.0
        ),
        1,
    )


ANSWERS: list[tuple[str, Record, dict[str, Any], Any]] = [
    ("held, live", LIVE, {}, Busy("bob", 10.0, "run_1")),
    ("held, live, safe", LIVE, {"repeat": "safe"}, Busy("bob", 10.0, "run_1")),
    ("held, live, a person's retry", LIVE, {"retry": True}, Busy("bob", 10.0, "run_1")),
    ("held, live, another stable owner", LIVE, {"reentrant": True}, Busy("bob", 10.0, "run_1")),
    ("held, live, same name but not stable", LIVE, {"owner": "bob"}, Busy("bob", 10.0, "run_1")),
    ("done", DONE_, {}, PAID),
    ("done, safe", DONE_, {"repeat": "safe"}, PAID),
    ("done, a person's retry", DONE_, {"retry": True}, PAID),
    ("done, its own owner", DONE_, {"owner": "bob", "reentrant": True}, PAID),
    ("failed for good", FAILED_, {}, Failed(BUG, False, "run_1")),
    ("failed for good, safe", FAILED_, {"repeat": "safe"}, Failed(BUG, False, "run_1")),
    ("failed for good, its own owner", FAILED_, {"owner": "bob", "reentrant": True}, Failed(BUG, False, "run_1")),
    ("in review", IN_REVIEW, {}, InReview("nobody knows", "run_1", 990.0)),
    ("in review, safe", IN_REVIEW, {"repeat": "safe"}, InReview("nobody knows", "run_1", 990.0)),
    ("in review, a person's retry", IN_REVIEW, {"retry": True}, InReview("nobody knows", "run_1", 990.0)),
]


@pytest.mark.parametrize(("found", "how", "answer"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_nothing_is_written_where_there_is_an_answer(found: Record, how: dict[str, Any], answer: Any) -> None:
    move = decide(ask(**how), found, NOW)
    assert isinstance(move, AnswerOnly)
    assert _plain(move.outcome) == _plain(answer)


def _plain(outcome: Any) -> Any:
    """Raw compares by identity."""
    return structs.replace(outcome, result=bytes(outcome.result)) if isinstance(outcome, Done) else outcome


TAKEOVERS: list[tuple[str, Record, dict[str, Any], int]] = [
    ("lapsed, safe", LAPSED, {"repeat": "safe"}, 3),
    ("live, its own stable owner", LIVE, {"owner": "bob", "reentrant": True}, 2),
    ("lapsed, its own stable owner", LAPSED, {"owner": "bob", "reentrant": True}, 2),
    ("failed, retryable", RETRYABLE, {}, 3),
    ("failed, retryable, safe", RETRYABLE, {"repeat": "safe"}, 3),
    ("failed for good, a person's retry", FAILED_, {"retry": True}, 3),
    ("done and forgotten", record(DONE, queue=EXPIRE, due=NOW - 1), {}, 1),
    ("done and forgotten, other payload", record(DONE, queue=EXPIRE, due=NOW - 1), {"fingerprint": "1:other"}, 1),
    ("failed and forgotten", record(FAILED, queue=EXPIRE, due=NOW, fault=BUG), {}, 1),
]


@pytest.mark.parametrize(("found", "how", "attempt"), [row[1:] for row in TAKEOVERS], ids=[row[0] for row in TAKEOVERS])
def test_a_take_over_is_conditional_on_the_version_and_draws_a_fence(
    found: Record, how: dict[str, Any], attempt: int
) -> None:
    move = decide(ask(**how), found, NOW)
    assert isinstance(move, BeginClaim)
    write = move.write
    assert isinstance(write, Replace)
    assert (write.version, write.fence, write.draw, write.lease) == ("v7", None, True, 30.0)
    assert (write.state, write.queue, write.due_in) == (HELD, "", None)
    claim = claim_of(structs.replace(found, body=write.body))
    assert (move.attempt, claim.attempt, claim.owner, claim.fault) == (attempt, attempt, how.get("owner", "ann"), None)


def test_a_lapsed_claim_that_may_never_be_repeated_is_parked() -> None:
    move = decide(ask(), LAPSED, NOW)
    assert isinstance(move, ParkClaim)
    assert (move.write.state, move.write.version, move.write.draw, move.write.lease) == (REVIEW, "v7", True, None)
    parked = claim_of(structs.replace(LAPSED, body=move.write.body))
    assert (parked.owner, parked.attempt, parked.reason) == ("bob", 2, move.reason)
    assert "bob" in move.reason


@pytest.mark.parametrize("found", [LIVE, LAPSED, DONE_, RETRYABLE, FAILED_, IN_REVIEW], ids=lambda r: r.state)
@pytest.mark.parametrize("how", [{}, {"repeat": "safe"}, {"retry": True}, {"owner": "bob", "reentrant": True}])
def test_another_payload_is_refused_in_every_state(found: Record, how: dict[str, Any]) -> None:
    move = decide(ask(fingerprint="1:other", **how), found, NOW)
    assert move == AnswerOnly(Mismatch("1:same", "1:other", found.state, "run_1"))


@pytest.mark.parametrize(("asked", "found"), [("", "1:same"), ("1:same", ""), ("", "")])
def test_a_payload_that_nobody_gave_is_no_mismatch(asked: str, found: str) -> None:
    move = decide(ask(fingerprint=asked), record(DONE, fingerprint=found, result=Raw(b"1")), NOW)
    assert isinstance(move, AnswerOnly)
    assert isinstance(move.outcome, Done)


@pytest.mark.parametrize(("until", "lapsed"), [(NOW + 0.001, False), (NOW, True), (NOW - 0.001, True), (None, True)])
def test_a_lease_lapses_at_its_end_and_not_before(until: float | None, lapsed: bool) -> None:
    assert is_lapsed(record(HELD, until=until), NOW) is lapsed
    assert isinstance(decide(ask(), record(HELD, until=until), NOW), ParkClaim if lapsed else AnswerOnly)


@pytest.mark.parametrize(
    ("queue", "due", "expired"),
    [
        (EXPIRE, NOW + 0.001, False),
        (EXPIRE, NOW, True),
        (EXPIRE, None, False),
        (TRIM, NOW - 5, False),
        ("", None, False),
    ],
)
def test_a_key_is_forgotten_when_its_keep_ends_and_not_before(queue: str, due: float | None, expired: bool) -> None:
    found = record(DONE, queue=queue, due=due, result=Raw(b"1"))
    assert is_expired(found, NOW) is expired
    assert isinstance(decide(ask(), found, NOW), BeginClaim if expired else AnswerOnly)


def test_a_result_past_its_keep_is_gone_though_nobody_swept_yet() -> None:
    kept = record(DONE, queue=TRIM, due=NOW + 1, result=Raw(b"1"), spill=Spill("d", 1, "res://r/7"), tombstone=50.0)
    seen, gone = outcome_of(kept, NOW), outcome_of(kept, NOW + 1)
    assert isinstance(seen, Done) and isinstance(gone, Done)
    assert (bytes(seen.result), seen.spill) == (b"1", Spill("d", 1, "res://r/7"))
    assert (bytes(gone.result), gone.spill) == (b"", None)


@pytest.mark.parametrize(
    ("queue", "due", "tombstone", "until"),
    [
        ("", None, None, None),
        (EXPIRE, 1_500.0, None, 1_500.0),
        (TRIM, 1_500.0, 100.0, 1_600.0),
        (TRIM, 1_500.0, -1.0, None),
    ],
)
def test_a_done_claim_says_until_when_its_key_is_kept(
    queue: str, due: float | None, tombstone: float | None, until: float | None
) -> None:
    seen = outcome_of(record(DONE, queue=queue, due=due, tombstone=tombstone, result=Raw(b"1")), NOW)
    assert isinstance(seen, Done)
    assert seen.kept_until == until


@pytest.mark.parametrize(
    ("words", "over"),
    [
        ({"keep": 100.0}, 1_100.0),
        ({"keep": -1.0}, None),
        ({"keep": 100.0, "finished_at": 900.0}, 1_000.0),
        ({"tombstone": 100.0}, 1_050.0),  # as an older ledger has it: from when the result goes
    ],
)
def test_a_key_whose_result_went_first_is_kept_from_its_end(words: dict[str, float], over: float | None) -> None:
    found = record(DONE, queue=TRIM, due=950.0, result=Raw(b"1"), **words)
    found = structs.replace(found, updated_at=1_000.0)
    assert kept_until(found, claim_of(found)) == over
    assert is_expired(found, 10_000.0) is (over is not None)
    assert over is None or (is_expired(found, over) and not is_expired(found, over - 0.1))


def test_a_look_at_each_state_answers_in_kind() -> None:
    assert outcome_of(LIVE, NOW) == Busy("bob", 10.0, "run_1")
    assert outcome_of(LAPSED, NOW) == Busy("bob", 0.0, "run_1")
    assert outcome_of(RETRYABLE, NOW) == Failed(CLEAN, True, "run_1")
    assert outcome_of(IN_REVIEW, NOW) == InReview("nobody knows", "run_1", 990.0)


@pytest.mark.parametrize(
    ("state", "life", "times"),
    [
        (DONE, Lifetime(), (EXPIRE, 30 * 86_400.0, None)),
        (DONE, Lifetime(keep=None), ("", None, None)),
        (DONE, Lifetime(keep=100.0, keep_result=10.0), (TRIM, 10.0, 100.0)),
        (DONE, Lifetime(keep=None, keep_result=10.0), (TRIM, 10.0, -1.0)),
        (DONE, Lifetime(keep=100.0, keep_result=100.0), (EXPIRE, 100.0, None)),
        (DONE, Lifetime(keep=100.0, keep_result=200.0), (EXPIRE, 100.0, None)),
        (FAILED, Lifetime(keep=100.0, keep_failed=5.0), (EXPIRE, 5.0, None)),
        (FAILED, Lifetime(keep=100.0, keep_failed=None), ("", None, None)),
        (FAILED, Lifetime(keep=100.0, keep_result=1.0, keep_failed=5.0), (EXPIRE, 5.0, None)),
    ],
)
def test_each_lifetime_has_its_own_end(
    state: str, life: Lifetime, times: tuple[str, float | None, float | None]
) -> None:
    assert finish_times(state, life) == times
