"""The planted bugs by name, and whether the programme catches them."""

from __future__ import annotations

from msgspec import Struct

from tests.faults.planted import claims, consumers, effects, flows, keys, outbox, rebuilds, reconcile, stores
from tests.faults.planted.plant import Plant

POSTGRES, VALKEY = ("postgres",), ("valkey",)
PATIENCE = 180.0  # seconds; a bug that makes a fault hang is not caught by it


ONE_ROUND = 0.037  # of F1: every point in every position


def _plant(bug: object, fault: str, **how: object) -> tuple[str, Plant]:
    if fault == "F1":
        how.setdefault("share", ONE_ROUND)
    name: str = bug.__name__.replace("_", "-")  # type: ignore[attr-defined]
    return name, Plant((bug.__doc__ or "").strip().rstrip("."), fault, bug, **how)  # type: ignore[arg-type]


PLANTS: dict[str, Plant] = dict(
    [
        _plant(stores.fence_ignored, "F9"),
        _plant(stores.version_ignored, "F11"),
        _plant(stores.check_then_insert, "F11"),
        _plant(stores.checks_dropped, "F9"),
        _plant(stores.no_fence_drawn, "H1"),
        _plant(stores.lease_born_dead, "F11"),
        _plant(stores.lease_for_ever, "F1"),
        _plant(stores.removed_by_anybody, "H1"),
        _plant(stores.half_a_batch, "F1"),
        _plant(stores.acknowledged_before_commit, "F1"),
        _plant(stores.nonce_not_read_back, "F7", stores=POSTGRES),
        _plant(stores.lost_answer_is_a_failure, "F7", stores=POSTGRES),
        _plant(stores.power_is_trusted, "F10", share=0.1),
        _plant(stores.numbers_from_the_clock, "F9"),
        _plant(stores.packet_without_commit, "F6"),
        _plant(claims.unknown_is_tried_again, "F1"),
        _plant(claims.payload_not_compared, "F12"),
        _plant(claims.done_is_done_again, "F11"),
        _plant(claims.time_of_the_worker, "F8"),
        _plant(claims.replays_are_rewritten, "F11"),
        _plant(claims.heart_does_not_beat, "F8"),
        _plant(claims.sweep_takes_what_is_held, "F15"),
        _plant(claims.forgotten_early, "F15"),
        _plant(claims.end_draws_no_fence, "H1"),
        _plant(flows.no_intent, "F1"),
        _plant(flows.probe_not_asked, "F1"),
        _plant(flows.key_of_the_attempt, "F1"),
        _plant(flows.ledger_not_read, "F1"),
        _plant(flows.completions_wait_for_the_end, "F1"),
        _plant(flows.unknown_is_retried, "F1"),
        _plant(flows.undone_in_order, "F1"),
        _plant(flows.undone_twice, "F1"),
        _plant(flows.record_apart_from_its_work, "F1"),
        _plant(keys.forms_not_folded, "F12"),
        _plant(keys.blank_accepted, "F12"),
        _plant(keys.case_folded, "F12"),
        _plant(outbox.publish_before_commit, "F17", stores=POSTGRES),
        _plant(outbox.mark_before_confirm, "F17"),
        _plant(outbox.marks_without_version, "F17"),
        _plant(outbox.cursor_instead_of_due, "F17"),
        _plant(outbox.whole_batch_verdict, "F17"),
        _plant(outbox.lane_not_bumped, "F17"),
        _plant(outbox.key_per_attempt, "F17"),
        _plant(outbox.silence_is_sent, "F19"),
        _plant(consumers.ack_before_claim, "F20"),
        _plant(consumers.batch_acked_as_one, "F20"),
        _plant(consumers.key_of_the_delivery, "F20"),
        _plant(consumers.poison_without_a_letter, "F20"),
        _plant(consumers.failure_acked, "F20"),
        _plant(effects.sent_again_without_key, "F21"),
        _plant(effects.key_left_out, "F21"),
        _plant(effects.window_from_the_last_start, "F21", share=0.1),
        _plant(effects.replayed_error_is_retried, "F21", share=0.1),
        _plant(effects.found_then_inserted, "F21", share=0.1),
        _plant(effects.if_match_star_as_upsert, "F21", share=0.1),
        _plant(effects.absent_too_soon, "F21", share=0.1),
        _plant(rebuilds.adopted_as_queued, "F23"),
        _plant(rebuilds.settled_as_absent, "F23"),
        _plant(rebuilds.result_overwritten, "F23"),
        _plant(reconcile.missing_from_half_a_source, "F22", share=0.05),
        _plant(reconcile.cap_for_each_item, "F22", share=0.05),
        _plant(reconcile.oldest_is_kept, "F22", share=0.05),
        _plant(reconcile.time_in_the_id, "F22", share=0.05),
    ]
)


class Catch(Struct, frozen=True):
    """Whether a planted bug was noticed, by which fault, and what it said."""

    name: str
    fault: str
    caught: bool
    said: str
    not_tried: str = ""  # and why


def catch(name: str, seed: int) -> Catch:
    """Run its fault with the bug in place. Caught: a promise is seen broken, not merely a figure missed."""
    from tests.faults.one import BROKE_OFF, apart

    plant = PLANTS[name]
    finding = apart(plant.fault, seed, plant.share, plant.stores, plant=name, patience=PATIENCE)
    broken = [what for what in (*finding.violations, *finding.unknown) if not what.startswith(BROKE_OFF)]
    return Catch(name, plant.fault, bool(broken), (broken or finding.violations or ["nothing"])[0], finding.not_tried)
