"""Promotions: planned as a list of conditions, carried out by one write; rollbacks, pauses."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from ..claims.claim import RUN, parse_space
from ..claims.manager import refuse_changed
from ..errors import Misuse
from ..operations import Operation
from ..records import Check, Record
from ..stores.base import Store
from .connections import Connections
from .gate import (
    GateCheck,
    Reach,
    calling_back,
    check_called,
    check_callers,
    check_file,
    check_key,
    check_proof,
    check_second,
    check_triggers,
    key_of,
    live_called,
    others_live,
)
from .reading import read_flow
from .releases import (
    FlowProof,
    FlowRelease,
    LiveFlow,
    ReleaseChange,
    as_stored,
    change_live,
    draft_of,
    keep_change,
    list_changes,
    live_of,
    live_place,
    live_record,
    proof_record,
    read_live,
    read_proof,
    release_name,
    release_of,
    scenarios_told,
)

__all__ = ["Promotion", "Releaser", "agree", "pause", "plan_promotion", "promote", "remembered_keys", "rollback"]


MOST_COUNTED = 10_000  # keys; counting more would read the whole ledger
PAGE = 1_000


class Releaser(Struct, frozen=True):
    """The person or token that changes what is live, and whether they may: a token needs the scope `release`."""

    by: str
    may: bool = True

    def require(self, what: str) -> None:
        if not self.may:
            raise Misuse(f"{self.by} may not {what}: its token lacks the scope release; create one that has it.")


class Promotion(Struct, frozen=True):
    """What a promotion would do, and every condition of it."""

    tenant: str
    release: FlowRelease
    proof: FlowProof | None
    proven: Record | None  # of the evidence, as it was read
    record: Record | None  # of what is live, as it was read
    live: LiveFlow | None
    checks: tuple[GateCheck, ...]
    remembered: int = 0
    new_key: str = ""

    @property
    def refused(self) -> list[GateCheck]:
        return [check for check in self.checks if not check.ok]


def plan_promotion(
    store: Store,
    tenant: str,
    name: str,
    who: Releaser,
    *,
    which: str = "",
    content: FlowRelease | None = None,
    connections: Connections | None = None,
    new_key: str = "",
    reach: Reach | None = None,
    also: Sequence[GateCheck] = (),
) -> Operation[Promotion]:
    """Check every condition. Writes nothing, and refuses only a release that does not exist.

    `which` is a number or hash, by default the draft; `content` is one that may not be stored yet; `also` are
    conditions that the caller has checked.
    """
    record = yield from live_record(store, tenant, name)
    live = None if record is None else read_live(record)
    if content is not None:
        release: FlowRelease | None = yield from as_stored(store, tenant, content)
    else:
        release = yield from (release_of(store, tenant, name, which) if which else draft_of(store, tenant, name))
    if release is None:
        raise Misuse(f"{name} has no draft; push one: twiceproof flows push {name}.flow.yaml", flow=name)
    before = None if live is None else (yield from release_of(store, tenant, name, release_name(live.number)))
    proven = yield from proof_record(store, tenant, name, release.hash)
    proof = None if proven is None else read_proof(proven)
    count = 0
    if before is not None and key_of(before) != key_of(release):
        count = yield from remembered_keys(store, tenant, name)
    if release.text:
        read = read_flow(release.text)
        # First what takes seconds, as hosts are asked: what other flows have live is read shortly before the write.
        checks = [*check_file(read, connections or Connections(), reach), *also]
        called = yield from live_called(store, tenant, read)
        circling = yield from calling_back(store, tenant, read, called)
        others = yield from others_live(store, tenant, read)
        checks += check_called(name, called, circling)
        checks += [*check_proof(release, proof, tenant, called), *check_triggers(others, read)]
        checks += check_callers(others, release)
    else:
        checks = [*also, *check_proof(release, proof, tenant, {})]
    agreed = [one.by for one in (yield from list_changes(store, tenant, name)) if _agrees(one, release)]
    checks += check_second(before, release, who.by, agreed)
    checks += [check_key(before, release, counted_keys(count), new_key), _scope(who)]
    return Promotion(tenant, release, proof, proven, record, live, tuple(checks), count, new_key)


def _agrees(change: ReleaseChange, release: FlowRelease) -> bool:
    return change.what == "agree" and change.hash == release.hash


def _scope(who: Releaser) -> GateCheck:
    found = f"{who.by} may release" if who.may else f"the token of {who.by} lacks the scope release"
    return GateCheck("scope", who.may, found, "" if who.may else "use a token that has it")


def counted_keys(count: int) -> str:
    return f"{count:,}{' or more' if count >= MOST_COUNTED else ''} key{'' if count == 1 else 's'}"


def remembered_keys(store: Store, tenant: str, name: str) -> Operation[int]:
    """Count the keys of a flow that are still known, up to `MOST_COUNTED`."""
    count, after = 0, None
    while True:
        page = yield from store.scan(RUN, after=after, limit=PAGE)
        count += sum(parse_space(record.at.space)[:2] == (tenant, name) for record in page.records)
        after = page.after
        if after is None or count >= MOST_COUNTED:
            return min(count, MOST_COUNTED)


# -- changes -------------------------------------------------------------------------------------


def agree(
    store: Store, tenant: str, name: str, who: Releaser, *, which: str = "", note: str = ""
) -> Operation[FlowRelease]:
    """Record that a person agrees to a content, by default the draft. Where a file says `second: true`, somebody else
    promotes it."""
    who.require("agree to a release")
    release = yield from (release_of(store, tenant, name, which) if which else draft_of(store, tenant, name))
    if release is None:
        raise Misuse(f"{name} has no draft; push one: twiceproof flows push {name}.flow.yaml", flow=name)
    change = ReleaseChange("agree", release.number, release.hash, who.by, 0.0, note)
    yield from keep_change(store, tenant, name, change, mark=f"agree {release.hash[:12]} {who.by}")
    return release


def promote(store: Store, plan: Promotion, who: Releaser, *, note: str = "") -> Operation[LiveFlow]:
    """Make the planned release live. Raises Misuse if a condition does not hold, or if what is live has changed since
    the plan was made."""
    who.require("promote")
    if plan.refused:
        raise Misuse(
            f"{plan.release.flow} is not promoted: {'; '.join(check.found for check in plan.refused)}; see all of it "
            f"with: twiceproof flows promote {plan.release.flow} --dry-run"
        )
    if plan.live is not None and plan.live.hash == plan.release.hash:
        return plan.live
    last = 0 if plan.live is None else plan.live.last
    number = plan.release.number or last + 1
    evidence = "" if plan.proof is None else scenarios_told(plan.proof.scenarios, len(plan.proof.results))
    change = ReleaseChange(
        "promote", number, plan.release.hash, who.by, 0.0, note, evidence, plan.new_key, plan.remembered
    )
    # A paused flow stays paused: the reason for the pause is not cured by another content.
    paused = plan.live is not None and plan.live.paused and not plan.release.version
    live = LiveFlow(
        plan.release.flow, plan.release.hash, number, max(last, number), paused=paused, version=plan.release.version
    )
    return (yield from _change(store, plan.tenant, plan.record, live, change, plan.release, _evidence(plan)))


def _evidence(plan: Promotion) -> list[Check]:
    """Return the condition that the evidence is still the one that was checked."""
    return [] if plan.proven is None else [Check(plan.proven.at, version=plan.proven.version)]


def rollback(
    store: Store, tenant: str, name: str, who: Releaser, *, to: str = "", note: str = "", seen: str = ""
) -> Operation[LiveFlow]:
    """Make an earlier release live at once: it was proved when it was promoted. Runs under way keep their release.

    `seen`: the version of the live flow's record that the decision is about; refused if it has changed since.
    """
    who.require("roll back")
    record, live = yield from _require_live(store, tenant, name, seen)
    release = yield from release_of(store, tenant, name, to or (yield from _release_before(store, tenant, live)))
    if not release.number:
        raise Misuse(f"{release.name} of {name} was never live; promote it: twiceproof flows promote {name}", flow=name)
    if release.number == live.number:
        return live
    change = ReleaseChange("rollback", release.number, release.hash, who.by, 0.0, note)
    paused = live.paused and not release.version  # a flow in Python cannot be paused, nor resumed
    back = LiveFlow(name, release.hash, release.number, live.last, paused=paused, version=release.version)
    return (yield from _change(store, tenant, record, back, change, release))


def _release_before(store: Store, tenant: str, live: LiveFlow) -> Operation[str]:
    """The release that was live before this one."""
    changes = yield from list_changes(store, tenant, live.flow)
    earlier = [one.number for one in changes if one.what in ("promote", "rollback")]
    while earlier and earlier[-1] == live.number:
        earlier.pop()
    if not earlier:
        raise Misuse(f"{live.flow} has had no other release; pause it: twiceproof flows pause {live.flow}")
    return release_name(earlier[-1])


def pause(
    store: Store, tenant: str, name: str, who: Releaser, *, paused: bool = True, note: str = "", seen: str = ""
) -> Operation[LiveFlow]:
    """Pause or resume a flow: while it is paused, no run begins or continues, and events are still accepted. `seen`: as
    for `rollback`.
    """
    word = "pause" if paused else "resume"
    who.require(word)
    record, live = yield from _require_live(store, tenant, name, seen)
    if live.version:
        raise Misuse(f"{name} is written in Python, and runs where its workers are; stop these instead.", flow=name)
    if live.paused == paused:
        return live
    release = yield from release_of(store, tenant, name, release_name(live.number))
    change = ReleaseChange(word, live.number, live.hash, who.by, 0.0, note)
    return (yield from _change(store, tenant, record, structs.replace(live, paused=paused), change, release))


def _require_live(store: Store, tenant: str, name: str, seen: str = "") -> Operation[tuple[Record, LiveFlow]]:
    record = yield from live_record(store, tenant, name)
    if record is None:
        raise Misuse(f"No release of {name} is live; promote one: twiceproof flows promote {name}", flow=name)
    refuse_changed(record, seen)
    return record, read_live(record)


def _change(
    store: Store,
    tenant: str,
    record: Record | None,
    live: LiveFlow,
    change: ReleaseChange,
    release: FlowRelease,
    also: Sequence[Check] = (),
) -> Operation[LiveFlow]:
    now = (yield from store.read(live_place(tenant, live.flow))).now
    changes = 1 if record is None else read_live(record).changes + 1
    live = structs.replace(live, changes=changes, by=change.by, at=now, note=change.note)
    if (yield from change_live(store, tenant, record, live, structs.replace(change, at=now), release, also)):
        return live
    found = yield from live_of(store, tenant, live.flow)
    told = "nothing" if found is None else f"{release_name(found.number)} ({found.hash[:12]}), by {found.by}"
    raise Misuse(
        f"What is live of {live.flow}, or its evidence, changed meanwhile: it is {told} now; compare with it "
        f"(twiceproof flows diff {live.flow}), then do it again.",
        flow=live.flow,
    )
