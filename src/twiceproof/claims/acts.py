"""Acts: who settled, retried, cancelled, released, replayed, forked or decided what, and who made or revoked a token.

An act is a record in the space of what it changed, written in the same commit: what a person did is never on record
without its effect, nor the other way round. Acts outlive what they were about, and are kept for a year. A store that
writes one record at a time (`batch_limit` 1) keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from ..operations import Operation
from ..records import Address, Insert, Record, record_kind
from ..stores.base import Store, scan_all
from ..stores.validate import MOST_STATE
from .claim import body_of, parse_space
from .lists import Listed, list_records
from .states import EXPIRE

__all__ = ["ACT_KIND", "ActNote", "ActPage", "ActShape", "act_beside", "act_write", "acts_of", "list_acts"]

ACT_KIND = record_kind("act", expires=True)
KEEP = 365 * 86_400.0


class ActNote(Struct, frozen=True, omit_defaults=True):
    """The body of an act's record."""

    verb: str
    by: str
    operation: str
    key: str
    tenant: str = "default"
    said: str = ""  # the verdict, the decision, the token's scopes, what it was forked from
    step: str = ""
    note: str = ""


class ActShape(Struct, frozen=True, kw_only=True):
    """One act: `by` did `verb` to `key` of `operation`. `at` is the store's time, in seconds since 1970."""

    id: str
    at: float
    verb: str
    by: str
    operation: str
    key: str
    said: str
    step: str
    note: str


class ActPage(Struct, frozen=True):
    """One page of acts, with cursors as those of a list of runs."""

    acts: Sequence[ActShape]
    after: str | None
    before: str | None = None
    newer: str | None = None


def act_beside(
    store: Store, record: Record, verb: str, by: str, *, said: str = "", step: str = "", note: str = ""
) -> tuple[Insert, ...]:
    """Return the write of an act, to be committed with the change of `record` that it is about.

    There is none without a name: what a machine does by itself is no person's act.

    Args:
        store: The store that is written to.
        record: What is changed, as it was found.
        verb: What was done: "settle", "retry", "cancel", "release", "replay", "decide".
        by: Who did it.
        said: What they said, such as a verdict.
        step: Which step or approval it was about.
        note: Their remark.
    """
    if not by or store.batch_limit == 1:
        return ()
    tenant, operation, key = parse_space(record.at.space)
    # By the version that the act met: a write that is sent twice leaves one act.
    at = Address(record.at.space, ACT_KIND, f"{record.version}-{verb}")
    return (act_write(at, ActNote(verb, by, operation, key, tenant, said, step, note)),)


def act_write(at: Address, act: ActNote) -> Insert:
    return Insert(at, body_of(act), _state_of(act.tenant), queue=EXPIRE, due_in=KEEP)


def _state_of(tenant: str) -> str:
    """Acts are listed by tenant, by the index of states. A long name is hashed."""
    return tenant if len(tenant) <= MOST_STATE else sha256(tenant.encode()).hexdigest()[:MOST_STATE]


def list_acts(
    store: Store,
    tenant: str,
    *,
    by: str = "",
    operation: str = "",
    key: str = "",
    limit: int = 100,
    after: str | None = None,
) -> Operation[ActPage]:
    """Return the acts of a tenant, the newest first.

    Args:
        store: The store.
        tenant: Whose acts.
        by: Only of this person.
        operation: Only about this flow, operation or webhook; "tokens" for those about tokens.
        key: Only about this key.
        limit: How many at most.
        after: A cursor of the same list.
    """

    def meant(record: Record) -> bool:
        act = _act_of(record)
        return act.tenant == tenant and by in ("", act.by) and operation in ("", act.operation) and key in ("", act.key)

    listed: Listed = yield from list_records(store, [(ACT_KIND, _state_of(tenant))], meant, limit=limit, after=after)
    return ActPage([_shape(record) for record in listed.records], listed.after, listed.before, listed.newer)


def acts_of(store: Store, space: str) -> Operation[list[ActShape]]:
    """Return the acts about one unit of work, the oldest first."""
    shapes = [_shape(record) for record in (yield from scan_all(store, ACT_KIND, space=space))]
    return sorted(shapes, key=lambda act: act.at)


def _act_of(record: Record) -> ActNote:
    return msgspec.json.decode(record.body, type=ActNote)


def _shape(record: Record) -> ActShape:
    act = _act_of(record)
    return ActShape(
        id=record.at.key,
        at=record.created_at,
        verb=act.verb,
        by=act.by,
        operation=act.operation,
        key=act.key,
        said=act.said,
        step=act.step,
        note=act.note,
    )
