"""Search by any name: a key or its beginning, a run, an event, an external id, a dead letter, an approval."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from unicodedata import normalize
from urllib.parse import quote

import msgspec
from msgspec import Struct

from ...app.app import App
from ...claims.claim import CLAIM, RUN, address_of, claim_of, parse_space, shown_id
from ...claims.states import is_expired
from ...claims.views import EVERY_STATE, list_claims
from ...errors import BadWrite, Misuse, NoSuchWait
from ...flows.engine.run_states import work_of
from ...flows.external_ids import runs_by_external_id
from ...flows.history.queries import Filter, list_runs
from ...flows.runtime import own_approval, own_run
from ...flows.waits.records import request_address
from ...inbound.dead_letters import find_letter
from ...inbound.hook import operation_of
from ...keys import validate_key
from ...operations import Operation
from ...records import Address, Record
from ...stores.base import Store

__all__ = ["SearchHit", "find", "looked_through"]

LATEST = 1_000  # latest runs whose correlation ids are searched
SHORTEST = 3  # least characters of a key's beginning
FEW, MOST = 5, 20  # keys found by their beginning: of one flow or function, and in all


class SearchHit(Struct, frozen=True):
    """One thing that has the name that was asked for. `where`: its flow, operation or webhook. `href`: its page in the
    dashboard."""

    what: str
    where: str
    name: str
    href: str
    state: str = ""


def _page(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def looked_through(app: App) -> str:
    """Say what was searched, so that no one relies on a search that may have missed something."""
    flows = len(app.flows) + len(app.operations)
    return (
        f"Looked for it as a run's id, as FLOW/KEY, as a key of {flows} flows and functions, as what their keys are "
        f"made of, as an event's id at {len(app.hooks)} webhooks, as an id of another system, as a dead letter, as an "
        f"approval, and as a correlation id of the latest {LATEST:,} runs."
    )


def _places(app: App, name: str) -> Iterator[tuple[str, Address]]:
    """Yield every address that a key may have: one read each."""
    tenant = app.settings.tenant
    for flow in app.flows:
        yield "run", address_of(tenant, flow, name, RUN)
    for operation in {*app.operations, *app.flows}:
        yield "claim", address_of(tenant, operation, name, CLAIM)
    for hook in (*app.hooks, *app.consumers):
        with suppress(Misuse):
            yield "event", address_of(tenant, operation_of(hook), name, CLAIM)


def _by_key(app: App, name: str) -> Operation[list[SearchHit]]:
    with suppress(Misuse):
        name = validate_key(name)
        places = list(_places(app, name))
        found = (yield from app.store.read_each([at for _, at in places])) if places else []
        return [
            _hit(what, one.record)
            for (what, _), one in zip(places, found, strict=True)
            if one.record is not None and not is_expired(one.record, one.now)
        ]
    return []


def _by_field(app: App, text: str) -> Operation[list[SearchHit]]:
    """What a person knows is often not the key, but what it was made of: the number of an order."""
    tenant = app.settings.tenant
    names = [
        (name, flow.claim_requests.maker.template, RUN, flow.order is not None) for name, flow in app.flows.items()
    ]
    names += [(name, once.claim_requests.maker.template, CLAIM, False) for name, once in app.operations.items()]
    hits: list[SearchHit] = []
    for name, template, kind, is_ordered in names:
        if template is None or not template.fields:
            continue
        with suppress(Misuse):
            key, is_whole = template.beginning(text)
            if is_ordered:  # the version comes last
                key, is_whole = f"{key}:", False
            found = yield from app.store.read(address_of(tenant, name, validate_key(key), kind))
            if is_whole and found.record is not None and not is_expired(found.record, found.now):
                hits.append(_hit("run" if kind == RUN else "claim", found.record))
            elif not is_whole and kind == RUN:
                hits += yield from _runs_that_begin(app.store, Filter(tenant, name, prefix=key))
    return hits


def _runs_that_begin(store: Store, which: Filter) -> Operation[list[SearchHit]]:
    page = yield from list_runs(store, which, limit=FEW)
    return [SearchHit("run", run.flow, run.key, _page("keys", run.flow, run.key), run.state) for run in page.runs]


def _hit(what: str, record: Record) -> SearchHit:
    operation, name = parse_space(record.at.space)[1:]
    return SearchHit(what, operation, name, _page("keys", operation, name), record.state)


def _by_run(store: Store, tenant: str, name: str) -> Operation[list[SearchHit]]:
    try:
        at = yield from own_run(store, tenant, name)
    except Misuse:
        return []
    found = yield from store.read(at)
    if found.record is None or is_expired(found.record, found.now):
        return []
    claim = claim_of(found.record)
    return [SearchHit("run", claim.operation, claim.key, _page("runs", shown_id(at)), found.record.state)]


def _by_id(store: Store, tenant: str, name: str) -> Operation[list[SearchHit]]:
    links = yield from runs_by_external_id(store, tenant, name)
    return [SearchHit(f"id of {one.step}", one.flow, one.key, _page("runs", one.run), one.state) for one in links]


def _by_correlation(store: Store, tenant: str, name: str) -> Operation[list[SearchHit]]:
    """Search the latest runs: there is no index of correlation ids."""
    page = yield from store.scan(RUN, newest=True, limit=LATEST)
    quoted = msgspec.json.encode(name).decode()
    hits = []
    for record in page.records:
        if quoted in record.body and parse_space(record.at.space).tenant == tenant:
            claim = claim_of(record)
            if work_of(claim).correlation == name:
                address = _page("runs", shown_id(record.at))
                hits.append(SearchHit("run of this correlation", claim.operation, claim.key, address, record.state))
    return hits


def _others(store: Store, tenant: str, name: str) -> Operation[list[SearchHit]]:
    if name.startswith("ltr_"):
        with suppress(Misuse):
            letter = yield from find_letter(store, tenant, name)
            return [SearchHit("dead letter", letter.hook, letter.id, _page("letters", letter.id), "kept")]
    if name.startswith("apr_"):
        with suppress(Misuse, NoSuchWait):
            own_approval(tenant, request_address(name))
            return [SearchHit("approval", "", name, _page("approvals", name))]
    return []


def find(app: App, name: str) -> Operation[list[SearchHit]]:
    """Return what has this name. Reads a bounded number of records."""
    store, tenant = app.store, app.settings.tenant
    searches = (
        _by_run(store, tenant, name),
        _by_key(app, name),
        _by_id(store, tenant, name),
        _others(store, tenant, name),
        _by_field(app, name),
    )
    hits: list[SearchHit] = []
    for search in searches:
        hits += yield from _answered(search)
    if not hits:
        hits = yield from _by_correlation(store, tenant, name)
    if not hits and len(name) >= SHORTEST:
        hits = yield from _answered(_by_beginning(app, name))
    return list({hit.href: hit for hit in hits}.values())


def _answered(search: Operation[list[SearchHit]]) -> Operation[list[SearchHit]]:
    """Return the hits; none for what no record can be named: it is too long, or has characters that no store takes."""
    try:
        return (yield from search)
    except BadWrite:
        return []


def _by_beginning(app: App, name: str) -> Operation[list[SearchHit]]:
    """Return keys that begin with the name, if none equals it: a few of each flow and function."""
    store, tenant = app.store, app.settings.tenant
    hits: list[SearchHit] = []
    for flow in app.flows:
        hits += yield from _runs_that_begin(store, Filter(tenant, flow, prefix=name))
    for operation in app.operations:
        found = yield from list_claims(
            store, EVERY_STATE, f"{tenant}/{operation}/", limit=FEW, key=normalize("NFC", name)
        )
        hits += [
            SearchHit("claim", one.operation, one.key, _page("keys", one.operation, one.key), one.state)
            for one in found.claims
        ]
    return hits[:MOST]
