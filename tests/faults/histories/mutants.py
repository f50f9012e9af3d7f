"""Planted bugs: stores and claims that each break one promise. A checker that lets one of them pass proves nothing."""

from __future__ import annotations

from msgspec import Struct

from tests.faults.histories import broken_batches, broken_claims, broken_engines, broken_stores
from twiceproof.claims.manager import ClaimManager
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class Mutant(Struct, frozen=True):
    name: str
    engine: type[MemoryEngine] = MemoryEngine
    store: type[GroupedStore] = GroupedStore
    claims: type[ClaimManager] = ClaimManager


HEALTHY = Mutant("healthy")

MUTANTS = (
    Mutant("no fence", engine=broken_engines.FenceBlind),
    Mutant("release without owner", engine=broken_engines.ReleaseByAnybody),
    Mutant("check, then insert", engine=broken_engines.InsertOverwrites),
    Mutant("take-over without a look at the version", engine=broken_engines.VersionBlind),
    Mutant("result changes on replay", engine=broken_engines.ResultDecays),
    Mutant("fence reused after a purge", engine=broken_engines.FenceRestarts),
    Mutant("the end draws no fence", engine=broken_engines.DrawsOnlyOnce),
    Mutant("lease ends too early", engine=broken_engines.ShortLease),
    Mutant("lease ends too late", engine=broken_engines.LongLease),
    Mutant("renewal is not written", engine=broken_engines.RenewalForgotten),
    Mutant("stale read", engine=broken_engines.StaleReads),
    Mutant("held key is purged", engine=broken_engines.PurgesHeld),
    Mutant("acknowledged write is lost", engine=broken_engines.LosesWrites),
    Mutant("a request that was given up lands late", engine=broken_engines.LateRequests),
    Mutant("lost reply taken for a conflict", store=broken_stores.Forgetful),
    Mutant("lost reply taken for a failure", store=broken_stores.Overconfident),
    Mutant("lapsed means free", claims=broken_claims.RepeatsBlindly),
    Mutant("failure for good is taken again", claims=broken_claims.ForgivesFailures),
    Mutant("another payload is let in", claims=broken_claims.IgnoresFingerprints),
    Mutant("live claim is given again", claims=broken_claims.GivesAgain),
)

BATCH_MUTANTS = (
    Mutant("half a batch lands", engine=broken_batches.Torn),
    Mutant("what was only read is not checked", engine=broken_batches.UncheckedReads),
    Mutant("the last writer wins", engine=broken_batches.LastWriterWins),
    Mutant("refused, and yet written", engine=broken_batches.RefusedButThere),
)
