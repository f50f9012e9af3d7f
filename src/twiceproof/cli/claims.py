"""`twiceproof claims list|show|settle|release|sweep`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
from msgspec import Raw, structs

from ..claims.claim import DONE, FAILED, HELD, NO_RESULT, QUEUED, REVIEW, RUN, WAITING, Done, Settlement, validate_name
from ..claims.manager import ClaimManager
from ..claims.retention import Swept, run_or_claim, sweep
from ..claims.states import is_expired
from ..claims.views import (
    EVERY_STATE,
    OPEN_STATES,
    ClaimEvidenceShape,
    ClaimLook,
    ClaimPage,
    ClaimShape,
    LongClaimShape,
    list_claims,
    look_at_claim,
    named_address,
    short_shape,
)
from ..clock import system_clock
from ..operations import Operation, block
from ..records import Address, Found, Record
from ..settings import from_environment
from ..stores.base import Store
from .doctor import clear_orphans
from .output import (
    NotFound,
    Progress,
    clean,
    counted,
    moment,
    show_json,
    show_moves,
    show_pairs,
    show_table,
    show_text,
    span,
)
from .prompts import (
    after_option,
    by_option,
    confirm,
    limit_option,
    login_name,
    note_option,
    read_result,
    result_option,
    yes_option,
)
from .target import LedgerTarget, command, load_record_kinds, opened, target_options

__all__ = ["claims", "list_", "release", "settle", "settle_claim", "show", "sweep_"]


HEAD = ("OPERATION", "KEY", "STATE", "ATTEMPT", "OWNER", "AGE", "LEASE LEFT", "RUN")
OPTIONAL = ("RUN", "OWNER")  # left out, in this order, on a narrow terminal: `claims show` has them
GAP = 3  # between two columns, at most

LIST_EPILOG = """\b
Examples:
  twiceproof claims list
  twiceproof claims list --state review
  twiceproof claims list --operation ship --state all --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--operation", metavar="NAME", help="Only claims of this operation.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, "all"]),
    help="Only claims in this state. Default: review, held and failed.",
)
@limit_option()
@after_option
@target_options
@click.pass_obj
def list_(target: LedgerTarget, operation: str | None, state: str | None, limit: int, after: str | None) -> None:
    """List claims that are not done, those in review first."""
    prefix = f"{validate_name('tenant', target.tenant)}/"
    if operation is not None:
        prefix += f"{validate_name('operation', operation)}/"
    states = EVERY_STATE if state == "all" else (state,) if state else OPEN_STATES
    with opened(target) as store:
        page = block(list_claims(store, states, prefix, limit=limit, after=after))
    if target.json:
        show_json(page)
    else:
        _show_list(target, page, state, operation, limit)


def _show_list(target: LedgerTarget, page: ClaimPage, state: str | None, operation: str | None, limit: int) -> None:
    if page.claims:
        rows = [
            (c.operation, c.key, c.word, c.attempt, c.owner, span(c.age), span(c.lease_left), c.run)
            for c in page.claims
        ]
        show_table(*_fitting(HEAD, rows))
        first = page.claims[0]
        show_text(f"To show one: {command(target, 'claims', 'show', about=(first.operation, first.key))}")
    else:
        show_text("No claims." if state in (None, "all") else f"No claims in state {state}.")
    same = ["--operation", operation] if operation else []
    if page.after is not None:
        chosen = [*(["--state", state] if state else []), "--limit", str(limit)]
        show_text(f"Next page: {command(target, 'claims', 'list', *same, *chosen, '--after', page.after)}")
    if state is None:
        show_text(f"To list claims that are done: {command(target, 'claims', 'list', *same, '--state', 'done')}")


def _fitting(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Drop optional columns until each row fits on one line of the terminal. Pipes get all columns."""
    columns = [[clean(cell) for cell in column] for column in zip(head, *rows, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name in OPTIONAL:
        if room is None or sum(GAP + max(map(len, column)) for column in columns) <= room:
            break
        columns = [column for column in columns if column[0] != name]
    head, *rows = zip(*columns, strict=True)
    return head, rows


RELEASE_EPILOG = """\b
Examples:
  twiceproof claims release ship order:17
  twiceproof claims release ship order:17 --force --yes
If you know what happened, settle the claim instead: that is recorded.
"""


@click.command(epilog=RELEASE_EPILOG, short_help="Delete a claim and its result, so that the work can run again.")
@click.argument("operation")
@click.argument("key")
@click.option("--force", is_flag=True, help="Release it although a process holds it; the work may then be done twice.")
@by_option
@yes_option
@target_options
@click.pass_obj
def release(target: LedgerTarget, operation: str, key: str, force: bool, by: str | None, yes: bool) -> None:
    """Delete a claim and its result; the next delivery does the work again."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        found = block(run_or_claim(store, at.space))
        record = require_claim(target, found)
        confirm(_question(short_shape(record, found.now), is_run=record.at.kind == RUN), yes=yes)
        released = block(ClaimManager(store).free(record.at, force=force, by=by or login_name()))
    if target.json:
        show_json({"released": released, "operation": operation, "key": key, "tenant": target.tenant})
    else:
        show_text(f"{operation} {key} is released; the next delivery does the work again.")


def require_claim(target: LedgerTarget, found: Found) -> Record:
    if found.record is None or is_expired(found.record, found.now):
        raise _no_claim(target)
    return found.record


def _no_claim(target: LedgerTarget) -> NotFound:
    return NotFound(
        "There is no such claim (the operation comes first, then the key); "
        f"list all claims: {command(target, 'claims', 'list', '--state', 'all')}"
    )


def _question(claim: ClaimShape, *, is_run: bool) -> str:
    steps = ". It is a run: all its steps run again, including those declared repeat=never" if is_run else ""
    return f"Release {claim.operation} {claim.key} (state: {claim.word})? The next delivery does its work again{steps}"


VERDICTS = {
    "happened": "is done; further deliveries get the recorded result.",
    "did-not-happen": "can be retried; the next delivery does the work.",
    "abandon": "is failed; only another settlement (--did-not-happen) runs it again.",
}
NO_RESULT_GIVEN = (
    "is done, without a result: further deliveries raise ResultNotKept. "
    "If the function returns nothing, settle it with --result null."
)

SETTLE_EPILOG = """\b
Examples:
  twiceproof claims settle ship order:17 --happened --result '{"parcel": "P-1"}'
  twiceproof claims settle ship order:17 --happened --result @answer.json
  twiceproof claims settle ship order:17 --did-not-happen --note "asked the carrier"
  twiceproof claims settle ship order:17 --abandon
"""


@click.command(epilog=SETTLE_EPILOG, short_help="Record what happened, for a claim whose outcome is unknown.")
@click.argument("operation")
@click.argument("key")
@click.option("--happened", is_flag=True, help="The work was done: mark the claim as done.")
@click.option("--did-not-happen", is_flag=True, help="The work was not done: allow another attempt.")
@click.option("--abandon", is_flag=True, help="Mark the claim as failed, whatever happened, and do not retry it.")
@result_option("--result", "With --happened: the return value")
@note_option("the claim")
@by_option
@target_options
@click.pass_obj
def settle(
    target: LedgerTarget, /, operation: str, key: str, result: str | None, note: str, by: str | None, **flags: bool
) -> None:
    """Settle a claim whose outcome is unknown: it happened, it did not, or it is abandoned."""
    verdict = _one_verdict(flags)
    if result is not None and verdict != "happened":
        raise click.UsageError("--result requires --happened; remove it, or use --happened.")
    raw = NO_RESULT if result is None else read_result(result)
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        settled = block(settle_claim(target, store, at, verdict, by=by or login_name(), note=note, result=raw))
    _show_settled(target, {"operation": operation, "key": key, "tenant": target.tenant, **settled})


def settle_claim(
    target: LedgerTarget, store: Store, at: Address, verdict: str, *, by: str, note: str = "", result: Raw = NO_RESULT
) -> Operation[dict[str, Any]]:
    """Settle a claim. The settlement carries the store's time, as everything in the ledger does."""
    found = yield from run_or_claim(store, at.space)
    require_claim(target, found)
    settlement = Settlement(verdict, by, found.now, note)
    outcome = yield from ClaimManager(store).settle(at, settlement, result=result, where=target.words())
    state = DONE if isinstance(outcome, Done) else FAILED
    return {"state": state, "verdict": verdict, "by": by, "note": note, "result_kept": bool(result)}


def _show_settled(target: LedgerTarget, settled: dict[str, Any]) -> None:
    if target.json:
        show_json({"settled": settled})
        return
    verdict = settled["verdict"]
    text = NO_RESULT_GIVEN if verdict == "happened" and not settled["result_kept"] else VERDICTS[verdict]
    show_text(f"{settled['operation']} {settled['key']} {text}")


def _one_verdict(flags: dict[str, bool]) -> str:
    given = [name.replace("_", "-") for name, is_set in flags.items() if is_set]
    if len(given) != 1:
        raise click.UsageError("Give exactly one of --happened, --did-not-happen, --abandon.")
    return given[0]


LONGEST_RESULT = 2_000  # characters; --json prints all of them

SHOW_EPILOG = """\b
Examples:
  twiceproof claims show ship order:17
  twiceproof claims show ship order:17 --json
Write -- before a key that begins with a dash: twiceproof claims show ship -- -17
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("operation")
@click.argument("key")
@target_options
@click.pass_obj
def show(target: LedgerTarget, operation: str, key: str) -> None:
    """Show one claim, the evidence about it, and the next move."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        look = block(look_at_claim(store, at))
    if look is None:
        raise _no_claim(target)
    moves = list(_moves(target, look))
    if target.json:
        show_json({"claim": look.claim, "evidence": look.evidence, "next": [move for _, move in moves]})
    else:
        _show_claim(look, moves)


def _moves(target: LedgerTarget, look: ClaimLook) -> Iterator[tuple[str, str]]:
    if look.claim is not None:
        yield from _run_moves(target, look.claim) if look.is_run else _next_moves(target, look.claim)


def _show_claim(look: ClaimLook, moves: list[tuple[str, str]]) -> None:
    if look.claim is None:
        show_text("The claim was released, or has expired: the next delivery does the work.")
    else:
        show_pairs(list(_pairs(look.claim)))
    for piece in look.evidence:
        show_text("\nEvidence, reported by a holder after it had lost the claim:")
        show_pairs(list(_evidence_pairs(piece)))
    show_moves(moves)


def _pairs(claim: LongClaimShape) -> Iterator[tuple[str, Any]]:
    yield "operation", claim.operation
    yield "key", claim.key
    yield "tenant", claim.tenant
    yield "state", claim.word
    if claim.reason and claim.state in (REVIEW, QUEUED, WAITING):
        yield "reason", claim.reason
    yield "attempt", claim.attempt
    yield "owner", claim.owner
    yield "run", claim.run or "-"
    yield "link", claim.link or "-"
    yield "fingerprint", claim.fingerprint or "-"
    yield "fence", claim.fence
    yield "created", f"{moment(claim.created_at)} ({span(claim.age)} ago)"
    yield "updated", moment(claim.updated_at)
    if claim.lease_left is not None:
        yield "lease", f"until {moment(claim.lease_until)} ({span(claim.lease_left)} left)"
    if claim.result_until is not None:
        yield "result until", moment(claim.result_until)
    if claim.kept_until is not None:
        yield "kept until", moment(claim.kept_until)
    yield from _findings(claim)
    if claim.settled:
        settled = claim.settled
        yield "settled", f"{settled['verdict']}, by {settled['by']}, {moment(settled['at'])}"
        if settled["note"]:
            yield "note", settled["note"]


def _evidence_pairs(piece: ClaimEvidenceShape) -> Iterator[tuple[str, Any]]:
    yield "owner", piece.owner
    yield "fence", piece.fence
    yield "seen", moment(piece.seen_at)
    yield from _findings(piece)


def _findings(found: LongClaimShape | ClaimEvidenceShape) -> Iterator[tuple[str, Any]]:
    """The result and the error, of the claim itself or of a late holder."""
    if found.result is not None:
        yield "result", _shortened(msgspec.json.format(bytes(found.result), indent=2).decode())
    elif found.spill:
        yield (
            "result",
            f"not kept: {found.spill['reason'] or 'it has expired'} (sha256 {found.spill['digest'] or '-'})",
        )
    elif getattr(found, "state", "") == DONE:
        yield "result", "not recorded, or expired"
    if found.fault:
        retry = "retryable" if found.fault["retryable"] else "not retryable"
        yield "error", f"{found.fault['type']}: {found.fault['message']} ({retry})"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_RESULT:
        return text
    return f"{text[:LONGEST_RESULT]}\n… and {len(text) - LONGEST_RESULT:,} more characters; --json prints all"


def _run_moves(target: LedgerTarget, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """A run has steps, each with its own outcome: `runs show` has them."""
    yield "This is a run. To see its steps and the next move:", command(target, "runs", "show", about=(claim.run,))


def _next_moves(target: LedgerTarget, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """Yield when a move applies, and its command."""
    about = (claim.operation, claim.key)

    def settle(*words: str) -> str:
        return command(target, "claims", "settle", *words, about=about)

    if claim.state == REVIEW or claim.lapsed:
        yield "If it happened (JSON is the return value):", settle("--happened", "--result", "JSON")
        yield "If it did not happen, and can be retried:", settle("--did-not-happen")
        yield "If it must not be retried:", settle("--abandon")
    elif claim.state == FAILED and not (claim.fault and claim.fault["retryable"]):
        yield "To allow another attempt with the next delivery:", settle("--did-not-happen")
    elif claim.state == HELD:
        yield (
            "A process holds it. If you know that this process is gone:",
            command(target, "claims", "release", "--force", about=about),
        )


SWEEP_EPILOG = """\b
Examples:
  twiceproof claims sweep
  TWICEPROOF_RESOURCES=dir:///var/lib/shop twiceproof claims sweep --orphans
Running apps sweep in the background; this command sweeps everything at once.
"""


@click.command("sweep", epilog=SWEEP_EPILOG)
@target_options
@click.option(
    "--orphans",
    is_flag=True,
    help="Also delete large values in TWICEPROOF_RESOURCES that no run refers to and that are older than a day.",
)
@click.pass_obj
def sweep_(target: LedgerTarget, orphans: bool) -> None:
    """Delete claims whose retention has expired, of all tenants."""
    total, deleted_orphans = Swept(), 0
    load_record_kinds()
    with opened(target) as store, Progress("swept", quiet=target.json) as progress:
        while _count(swept := block(sweep(store))):
            total = Swept(*(a + b for a, b in zip(structs.astuple(total), structs.astuple(swept), strict=True)))
            progress.show(_count(total))
        if orphans:
            deleted_orphans = clear_orphans(store, from_environment(os.environ).resources, system_clock)
    shape = {"deleted_claims": total.forgotten, "trimmed_results": total.trimmed, "deleted_records": total.pieces}
    if orphans:
        shape["deleted_orphans"] = deleted_orphans
    if target.json:
        show_json(shape)
    else:
        claims_, records = counted(total.forgotten, "claim"), counted(total.pieces, "record")
        show_text(f"Deleted {claims_}, the results of {total.trimmed:,} more, and {records} beside them.")
    if orphans and not target.json:
        show_text(f"Deleted {counted(deleted_orphans, 'orphaned value')}.")


def _count(swept: Swept) -> int:
    return sum(structs.astuple(swept))


@click.group()
def claims() -> None:
    """List, settle, release and sweep claims."""


for _command in (list_, show, settle, release, sweep_):
    claims.add_command(_command)
