"""The `Idempotency-Key` middleware: beside an endpoint without it, and beside the published Python middlewares."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from ..callers import One, Tasks
from ..contenders.middleware import BODY, make_app
from ..findings import Findings, rows_beside
from ..goals import line
from ..http_client import Caller, serve
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Ratio, Series, ratio, spread
from ..sites import Sites

__all__ = ["measure_middleware"]

HEADER, OTHER = "asgi-idempotency-header, FastAPI", "fastapi-idempotency, FastAPI"
OURS = "IdempotencyKey, FastAPI"
Keys = Callable[[], str]


def measure_middleware(sites: Sites, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    slots = Slots(plan.rounds, plan.slot)
    for framework in ("FastAPI", "Starlette"):
        findings.add(_beside_bare(framework, sites.sqlite.fresh(), slots, progress))
    findings.add(_beside_peers("memory", "memory://", [HEADER, OTHER], slots, progress))
    findings.add(_beside_peers("Valkey", sites.lax_valkey.fresh(), [HEADER], slots, progress))
    findings.add(_in_process(slots, progress))
    return findings


# -- over HTTP -----------------------------------------------------------------------------------


def _beside_bare(framework: str, url: str, slots: Slots, progress: Progress) -> Findings:
    """What a duplicate pays, over HTTP, beside what everybody pays without the middleware."""
    bare, guarded, part = f"bare {framework}", f"IdempotencyKey, {framework}", f"HTTP, {framework}, SQLite"
    with ExitStack() as stack, progress.heat(part, slots.rounds) as step:
        ports = {name: serve(name, url, stack) for name in (bare, guarded)}
        acts = [(bare, _fresh()), (f"{guarded}, replay", _same()), (f"{guarded}, first call", _fresh())]
        found = compete([_contender(name, ports, keys, stack) for name, keys in acts], slots, step)
    return Findings(rows_beside(part, found[0], found), [line("middleware replay", part, _time(found[1], found[0]))])


def _beside_peers(store: str, url: str, peers: list[str], slots: Slots, progress: Progress) -> Findings:
    findings = Findings()
    part = f"HTTP, FastAPI, {store}"
    with ExitStack() as stack:
        ports = {name: serve(name, url, stack) for name in (OURS, *peers)}
        for what, make in (("replay", _same), ("first call", _fresh)):
            with progress.heat(f"{part}, {what}", slots.rounds) as step:
                contenders = [_contender(f"{name}, {what}", ports, make(), stack) for name in (OURS, *peers)]
                found = compete(contenders, slots, step)
            findings.add(_ahead(f"{part}, {what}", found, f"middleware {what}s"))
    return findings


def _ahead(part: str, found: Sequence[Series], goal: str) -> Findings:
    mine, *others = found
    names = [other.name.partition(",")[0] for other in others]
    lines = [line(goal, part, ratio(mine, other), name) for name, other in zip(names, others, strict=True)]
    return Findings(rows_beside(part, mine, list(found)), lines)


def _contender(name: str, ports: dict[str, int], keys: Keys, stack: ExitStack) -> Contender:
    port = next(port for known, port in ports.items() if name.startswith(known))
    caller = Caller(port, keys)
    stack.callback(caller.close)
    return Contender(name, One(caller))


def _time(ours: Series, other: Series) -> Ratio:
    """How many times as long it takes."""
    return spread([mine / theirs for mine, theirs in zip(ours.seconds, other.seconds, strict=True)])


def _same() -> Keys:
    key = uuid.uuid4().hex
    return lambda: key


def _fresh() -> Keys:
    stem, numbers = uuid.uuid4().hex, itertools.count()
    return lambda: f"{stem}-{next(numbers)}"


# -- in one process ------------------------------------------------------------------------------


def _in_process(slots: Slots, progress: Progress) -> Findings:
    """Plain ASGI calls without any server: nothing hides what a middleware costs."""
    findings = Findings()
    names = ["bare FastAPI", OURS, HEADER, OTHER]
    for what, make in (("replay", _same), ("first call", _fresh)):
        part = f"in process, FastAPI, memory, {what}"
        with progress.heat(part, slots.rounds) as step:
            acts = [_direct(name, what, make()) for name in names]
            found = compete(acts, slots, step)
        findings.rows += rows_beside(part, found[0], found)
        if what == "replay":
            findings.lines.append(line("middleware in process", part, _time(found[1], found[0])))
    return findings


def _direct(name: str, what: str, keys: Keys) -> Contender:
    return Contender(f"{name}, {what}", Tasks(1, _asgi_act(make_app(name, "memory://"), keys)))


def _asgi_act(app: Any, keys: Keys) -> Any:
    async def act(_: int) -> None:
        given, statuses = False, []

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()
            given = True
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status"))

        await app(_scope(keys().encode()), receive, send)
        assert statuses[0] == 201, statuses

    return act


def _scope(key: bytes) -> dict[str, Any]:
    headers = [
        (b"host", b"shop"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
        (b"authorization", b"Bearer abc"),
        (b"idempotency-key", key),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/pay",
        "raw_path": b"/pay",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": headers,
    }
