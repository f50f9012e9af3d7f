"""Releases of flows in the store: drafts, releases by the hash of their content, proofs, and which one is live.

All records of a flow are in one space, `~flows/TENANT/NAME` (no tenant's name has a tilde), so that each change is one
atomic write. One record says what is live: a start reads it, and a promotion is conditional on its version.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, structs

from ..claims.claim import validate_name
from ..errors import Misuse
from ..keys.canonical import canonical
from ..operations import Operation
from ..records import SELF, Address, Check, Insert, Record, Replace, Write, Written, record_kind
from ..stores.base import Store, scan_all
from .model import CallSpec, FlowFile, ProbeSpec
from .names import imported
from .reading import ReadFlow, read_flow, require_sound, walk

__all__ = [
    "CHANGE_KIND",
    "DRAFT_KIND",
    "LIVE_KIND",
    "NUMBER_KIND",
    "PROOF_KIND",
    "RELEASE_KIND",
    "FlowProof",
    "FlowRelease",
    "LiveFlow",
    "ReleaseChange",
    "TestProof",
    "as_stored",
    "change_live",
    "content_hash",
    "digest_of_tests",
    "draft_of",
    "function_digests",
    "keep_proof",
    "list_changes",
    "list_releases",
    "live_of",
    "live_place",
    "live_record",
    "proof_of",
    "push",
    "release_name",
    "release_of",
    "scenarios_told",
]


RELEASE_KIND = record_kind("release")  # by content hash: the file
NUMBER_KIND = record_kind("number")  # by name ("r8"): the hash
PROOF_KIND = record_kind("proof")  # by content hash: what was proved
LIVE_KIND = record_kind("live")
DRAFT_KIND = record_kind("draft")
CHANGE_KIND = record_kind("change")  # by its number: who changed what is live
SHORTEST_HASH = 8  # letters by which a release may be named


class FlowRelease(Struct, frozen=True, omit_defaults=True):
    """A flow's content as it was pushed. `number` is given when it is promoted for the first time.

    Of a Python flow only the digests are kept: its code is deployed with its workers.
    """

    flow: str
    hash: str
    text: str = ""
    tests: str = ""  # digest of its tests
    functions: dict[str, str] = {}  # of the Python functions that it calls: digests of their sources
    number: int = 0
    version: str = ""  # of a Python flow
    key: str = ""  # the template of its key, of a Python flow
    by: str = ""
    at: float = 0.0
    note: str = ""

    @property
    def name(self) -> str:
        return release_name(self.number) if self.number else self.hash[:12]


class TestProof(Struct, frozen=True, omit_defaults=True):
    """What was run of one test, and the result."""

    __test__ = False  # tells pytest that this is not a test class

    name: str
    planned: int
    completed: int
    safe: bool
    unobserved: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()  # the expectations that were not met
    ignored: bool = False  # its event starts nothing, as expected: no step was run


class FlowProof(Struct, frozen=True, omit_defaults=True):
    """Evidence for one content: what `flows test` ran, with which code, tests and version of this package."""

    flow: str
    tenant: str
    hash: str
    tests: str
    functions: dict[str, str]  # also those of the flows that it calls
    package: str  # the version of twiceproof
    depth: int
    results: tuple[TestProof, ...]
    worlds: tuple[str, ...] = ()  # where effects were observed
    by: str = ""
    host: str = ""
    at: float = 0.0
    flows: dict[str, str] = {}  # the contents of the flows that it calls, and of those that these call

    @property
    def scenarios(self) -> int:
        return sum(test.completed for test in self.results)


def scenarios_told(scenarios: int, tests: int) -> str:
    """How much was run, for people."""
    return f"{scenarios} scenario{'' if scenarios == 1 else 's'} of {tests} test{'' if tests == 1 else 's'}"


class LiveFlow(Struct, frozen=True, omit_defaults=True):
    """Which release is live. `last` is the highest number given so far, `changes` how often this record was written."""

    flow: str
    hash: str
    number: int
    last: int
    changes: int = 1
    paused: bool = False
    version: str = ""  # of a Python flow
    by: str = ""
    at: float = 0.0
    note: str = ""


class ReleaseChange(Struct, frozen=True, omit_defaults=True):
    """One change of what is live: who, when, why, and on which evidence."""

    what: str  # promote, rollback, pause, resume, migrate, draft, agree
    number: int
    hash: str
    by: str
    at: float
    note: str = ""
    evidence: str = ""
    new_key: str = ""  # why the key may differ from that of the release before
    forgotten: int = 0  # keys that are remembered under the old key
    about: tuple[str, ...] = ()


def release_name(number: int) -> str:
    return f"r{number}"


def space_of_flow(tenant: str, name: str) -> str:
    return f"~flows/{validate_name('tenant', tenant)}/{validate_name('flow', name)}"


# -- what a content is known by ------------------------------------------------------------------


def content_hash(file: FlowFile) -> str:
    """SHA-256 of the canonical JSON of a file's model. Comments, the order of fields and tests do not count, nor does a
    field that is written out with its default: a later version of this package may have more of them."""
    return _hash({name: value for name, value in _said(file).items() if name != "tests"})


def _hash(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()


def _said(file: FlowFile) -> Mapping[str, Any]:
    told = {}
    for field in structs.fields(file):
        value = getattr(file, field.name)
        default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
        if default is NODEFAULT or value != default:
            told[field.encode_name] = _plain(value)
    return told


def _plain(value: Any) -> Any:
    """Return plain data: structs by their fields, everything else unchanged, with exact numbers."""
    if isinstance(value, Struct):
        defaults = {field.encode_name: field.default for field in structs.fields(value)}
        named = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        told = {encoded: getattr(value, name) for name, encoded in named}
        return {name: _plain(one) for name, one in told.items() if one != defaults[name] and one != {}}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def digest_of_tests(read: ReadFlow) -> str:
    data = read.document.data
    return _hash((data.get("tests") if isinstance(data, dict) else None) or [])


def function_digests(read: ReadFlow) -> dict[str, str]:
    """Return the functions that a file calls, each with a digest of its source; "" if the source cannot be read."""
    names: dict[str, None] = {}
    for step in walk((*read.steps, *read.on_error)):
        if isinstance(step.spec, CallSpec):
            names[step.spec.call] = None
        repeat = getattr(step.spec, "repeat", None)
        if isinstance(repeat, ProbeSpec) and isinstance(repeat.check, str) and not repeat.check.startswith("GET "):
            names[repeat.check] = None
    return {name: source_digest(imported(name)) for name in sorted(names)}


def source_digest(function: Any) -> str:
    try:
        return sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()
    except (OSError, TypeError):  # created at run time, or compiled
        return ""


# -- reading -------------------------------------------------------------------------------------


def live_place(tenant: str, name: str) -> Address:
    """Where it is kept which release is live."""
    return Address(space_of_flow(tenant, name), LIVE_KIND, SELF)


def live_record(store: Store, tenant: str, name: str) -> Operation[Record | None]:
    return (yield from store.read(live_place(tenant, name))).record


def live_of(store: Store, tenant: str, name: str) -> Operation[LiveFlow | None]:
    record = yield from live_record(store, tenant, name)
    return None if record is None else read_live(record)


def read_live(record: Record) -> LiveFlow:
    return msgspec.json.decode(record.body, type=LiveFlow)


def draft_of(store: Store, tenant: str, name: str) -> Operation[FlowRelease | None]:
    """Return the content that was pushed last."""
    space = space_of_flow(tenant, name)
    record = (yield from store.read(Address(space, DRAFT_KIND, SELF))).record
    return None if record is None else (yield from _by_hash(store, space, record.body))


def release_of(store: Store, tenant: str, name: str, which: str = "") -> Operation[FlowRelease]:
    """Return a release by its number ("r7") or a content by (the beginning of) its hash; by default the live one.
    Raises Misuse.
    """
    space = space_of_flow(tenant, name)
    if not which:
        live = yield from live_of(store, tenant, name)
        if live is None:
            raise Misuse(f"No release of {name} is live; promote one: twiceproof flows promote {name}", flow=name)
        which = live.hash
    if which[:1] == "r" and which[1:].isdecimal():
        record = (yield from store.read(Address(space, NUMBER_KIND, which))).record
        which = "" if record is None else record.body
    found = (yield from _by_hash(store, space, which)) if which else None
    if found is None and len(which) >= SHORTEST_HASH:
        every = yield from list_releases(store, tenant, name)
        found = next((one for one in every if one.hash.startswith(which)), None)
    if found is None:
        raise Misuse(f"There is no such release of {name}; list them: twiceproof flows releases {name}", flow=name)
    return found


def _by_hash(store: Store, space: str, name: str) -> Operation[FlowRelease | None]:
    record = (yield from store.read(Address(space, RELEASE_KIND, name))).record
    return None if record is None else msgspec.json.decode(record.body, type=FlowRelease)


def as_stored(store: Store, tenant: str, release: FlowRelease) -> Operation[FlowRelease]:
    """Return a content as it is in the store, with its number; as it is given, if it is not there yet."""
    return (yield from _by_hash(store, space_of_flow(tenant, release.flow), release.hash)) or release


def list_releases(store: Store, tenant: str, name: str) -> Operation[list[FlowRelease]]:
    """Return every content that was pushed: released ones first, newest first."""
    records = yield from scan_all(store, RELEASE_KIND, space=space_of_flow(tenant, name), page=100)
    found = [msgspec.json.decode(record.body, type=FlowRelease) for record in records]
    return sorted(found, key=lambda one: (-one.number, -one.at))


def list_changes(store: Store, tenant: str, name: str) -> Operation[list[ReleaseChange]]:
    """Return every change of what is live, oldest first."""
    records = yield from scan_all(store, CHANGE_KIND, space=space_of_flow(tenant, name), page=100)
    return sorted((msgspec.json.decode(one.body, type=ReleaseChange) for one in records), key=lambda one: one.at)


def proof_record(store: Store, tenant: str, name: str, content: str) -> Operation[Record | None]:
    at = Address(space_of_flow(tenant, name), PROOF_KIND, content)
    return (yield from store.read(at)).record


def proof_of(store: Store, tenant: str, name: str, content: str) -> Operation[FlowProof | None]:
    record = yield from proof_record(store, tenant, name, content)
    return None if record is None else read_proof(record)


def read_proof(record: Record) -> FlowProof:
    return msgspec.json.decode(record.body, type=FlowProof)


# -- writing -------------------------------------------------------------------------------------


def push(store: Store, tenant: str, text: str, *, by: str, note: str = "") -> Operation[tuple[FlowRelease, bool]]:
    """Keep a file as its flow's draft. Nothing that is live changes. Returns it, and whether anything was written."""
    read = read_flow(text)
    file = require_sound(read, "the file")
    given = FlowRelease(
        file.flow, content_hash(file), text, digest_of_tests(read), function_digests(read), by=by, note=note
    )
    return (yield from push_release(store, tenant, given))


def push_release(store: Store, tenant: str, given: FlowRelease) -> Operation[tuple[FlowRelease, bool]]:
    space = space_of_flow(tenant, given.flow)
    while True:
        at = Address(space, RELEASE_KIND, given.hash)
        found, drafted = yield from store.read_each([at, Address(space, DRAFT_KIND, SELF)])
        writes: list[Write] = []
        kept = structs.replace(given, at=found.now)
        if found.record is not None:
            known = msgspec.json.decode(found.record.body, type=FlowRelease)
            kept = structs.replace(known, text=given.text, tests=given.tests, functions=given.functions)
            if (kept.tests, kept.functions) == (known.tests, known.functions):
                kept = known  # the comments and spacing of the first push are kept
            else:
                writes.append(Replace(at, _json(kept), version=found.record.version))
        else:
            writes.append(Insert(at, _json(kept)))
        writes += _pointed(drafted.record, space, given.hash)
        if not writes:
            return kept, False
        if isinstance((yield from store.write(*writes)), Written):
            return kept, True


def _pointed(draft: Record | None, space: str, content: str) -> list[Write]:
    at = Address(space, DRAFT_KIND, SELF)
    if draft is None:
        return [Insert(at, content)]
    return [] if draft.body == content else [Replace(at, content, version=draft.version)]


def keep_proof(store: Store, proof: FlowProof) -> Operation[FlowProof]:
    """Store evidence for a content, and replace earlier evidence: the last proof counts, even if it covers less."""
    at = Address(space_of_flow(proof.tenant, proof.flow), PROOF_KIND, proof.hash)
    while True:
        found = yield from store.read(at)
        kept = structs.replace(proof, at=found.now)
        write: Write = Insert(at, _json(kept))
        if found.record is not None:
            write = Replace(at, _json(kept), version=found.record.version)
        if isinstance((yield from store.write(write)), Written):
            return kept


def change_live(
    store: Store,
    tenant: str,
    before: Record | None,
    live: LiveFlow,
    change: ReleaseChange,
    release: FlowRelease,
    also: Sequence[Check] = (),
) -> Operation[bool]:
    """Make a release live and record who did it, in one write. False: what is live has changed since `before`, or a
    condition in `also` does not hold any more.
    """
    space = space_of_flow(tenant, live.flow)
    at = Address(space, LIVE_KIND, SELF)
    body = _json(live)
    # A fence is drawn so that processes that hold the pointer in memory are notified.
    pointer: Write = Insert(at, body, draw=True)
    if before is not None:
        pointer = Replace(at, body, version=before.version, draw=True)
    writes = [pointer, Insert(Address(space, CHANGE_KIND, f"{live.changes:08d}"), _json(change))]
    if release.number == 0 and live.number:
        writes += yield from _numbered(store, space, release, live.number)
    return isinstance((yield from store.write(*also, *writes)), Written)


def keep_change(store: Store, tenant: str, name: str, change: ReleaseChange, *, mark: str) -> Operation[None]:
    """Record an act that does not change what is live. `mark` distinguishes it from others of the same moment."""
    space = space_of_flow(tenant, name)
    now = (yield from store.read(Address(space, CHANGE_KIND, mark))).now
    at = Address(space, CHANGE_KIND, f"{mark} {now:.6f}")
    yield from store.write(Insert(at, _json(structs.replace(change, at=now))))


def _numbered(store: Store, space: str, release: FlowRelease, number: int) -> Operation[list[Write]]:
    at = Address(space, RELEASE_KIND, release.hash)
    found = (yield from store.read(at)).record
    if found is None or msgspec.json.decode(found.body, type=FlowRelease) != release:
        raise Misuse(f"{release.flow} was pushed again meanwhile; look at it: twiceproof flows releases {release.flow}")
    body = _json(structs.replace(release, number=number))
    name = Address(space, NUMBER_KIND, release_name(number))
    return [Replace(at, body, version=found.version), Insert(name, release.hash)]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
