"""What there is to see of a flow's releases: what is live, its draft, the evidence of each, and who changed what."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct, structs

from ..operations import Operation
from ..records import SELF, Address, Record
from ..stores.base import Store
from .releases import (
    DRAFT_KIND,
    LIVE_KIND,
    NUMBER_KIND,
    PROOF_KIND,
    RELEASE_KIND,
    FlowProof,
    FlowRelease,
    LiveFlow,
    ReleaseChange,
    TestProof,
    list_changes,
    read_live,
    read_proof,
    release_name,
    space_of_flow,
)

__all__ = [
    "ChangeShape",
    "FlowReleases",
    "LiveShape",
    "ProofShape",
    "ReleaseShape",
    "TestShape",
    "live_shape",
    "look_at_releases",
    "release_shape",
]


MOST_AT_ONCE = 100  # records that are read at once


class LiveShape(Struct, frozen=True):
    """Which release new runs begin on, since when, and who decided it."""

    release: str
    flow: str
    hash: str
    paused: bool
    version: str
    by: str
    at: float
    note: str


class TestShape(TestProof, frozen=True, omit_defaults=False):
    """What was run of one test, with every field, as programs read it."""


class ChangeShape(ReleaseChange, frozen=True, omit_defaults=False):
    """One change of what is live, with every field."""


class ProofShape(Struct, frozen=True):
    """The evidence for a content: what was run of each of its tests, and with what."""

    flow: str
    tenant: str
    hash: str
    tests: str
    functions: dict[str, str]
    package: str
    depth: int
    results: tuple[TestShape, ...]
    worlds: tuple[str, ...]
    flows: dict[str, str]
    by: str
    host: str
    at: float
    scenarios: int


class ReleaseShape(Struct, frozen=True):
    """A content that was pushed: its name once it was live (`r8`), who pushed it, and its evidence."""

    flow: str
    hash: str
    tests: str
    functions: dict[str, str]
    version: str
    key: str
    by: str
    at: float
    note: str
    release: str | None
    proof: ProofShape | None


class FlowReleases(Struct, frozen=True):
    """Everything about a flow's releases. `draft` is the hash of what was pushed last."""

    flow: str
    live: LiveShape | None
    draft: str | None
    releases: list[ReleaseShape]
    changes: list[ChangeShape]

    @property
    def is_empty(self) -> bool:
        return not (self.releases or self.changes)

    def of(self, content: str | None) -> ReleaseShape | None:
        return next((one for one in self.releases if one.hash == content), None)


def live_shape(live: LiveFlow) -> LiveShape:
    name = release_name(live.number)
    return LiveShape(name, live.flow, live.hash, live.paused, live.version, live.by, live.at, live.note)


def release_shape(release: FlowRelease, proof: FlowProof | None = None) -> ReleaseShape:
    told = structs.asdict(release)
    del told["text"], told["number"]
    number = release_name(release.number) if release.number else None
    return ReleaseShape(**told, release=number, proof=None if proof is None else _proof_shape(proof))


def _proof_shape(proof: FlowProof) -> ProofShape:
    results = tuple(TestShape(**structs.asdict(test)) for test in proof.results)
    return ProofShape(**{**structs.asdict(proof), "results": results, "scenarios": proof.scenarios})


def look_at_releases(store: Store, tenant: str, name: str, *, most: int | None = None) -> Operation[FlowReleases]:
    """Read the releases of a flow, the latest first, and its draft, with their evidence. `most`: so many of the latest
    releases and changes; older ones are not read."""
    space = space_of_flow(tenant, name)
    pointer, drafted = yield from store.read_each([Address(space, kind, SELF) for kind in (LIVE_KIND, DRAFT_KIND)])
    live = None if pointer.record is None else read_live(pointer.record)
    draft = None if drafted.record is None else drafted.record.body
    last = 0 if live is None else live.last
    numbers = [release_name(one) for one in range(last, max(0, last - (most or last)), -1)]
    named = yield from _read(store, space, NUMBER_KIND, numbers)
    contents = [record.body for record in named if record is not None]
    if draft is not None and draft not in contents:
        contents.append(draft)
    releases = yield from _read(store, space, RELEASE_KIND, contents)
    proofs = yield from _read(store, space, PROOF_KIND, contents)
    shapes = [
        release_shape(msgspec.json.decode(one.body, type=FlowRelease), None if proof is None else read_proof(proof))
        for one, proof in zip(releases, proofs, strict=True)
        if one is not None
    ]
    changes = [ChangeShape(**structs.asdict(one)) for one in (yield from list_changes(store, tenant, name))]
    told = None if live is None else live_shape(live)
    return FlowReleases(name, told, draft, shapes, changes[-most:] if most else changes)


def _read(store: Store, space: str, kind: str, names: Sequence[str]) -> Operation[list[Record | None]]:
    found: list[Record | None] = []
    for first in range(0, len(names), MOST_AT_ONCE):
        asked = [Address(space, kind, name) for name in names[first : first + MOST_AT_ONCE]]
        found += [one.record for one in (yield from store.read_each(asked))]
    return found
