"""The dashboard over a large ledger: how long pages take, how much they read, and what open browsers cost webhooks."""

from __future__ import annotations

import asyncio
import http.client
import json
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twiceproof import App
from twiceproof.server.app import Application, make_application

from ..callers import Callers
from ..contenders.door_server import DoorServer
from ..findings import Findings
from ..goals import line
from ..ledgers import FLOW, ReadCounter, declare_shop, ledger_rows, make_templates
from ..plan import Plan
from ..progress import Progress
from ..series import spread
from ..sites import Site

__all__ = ["measure_browsers", "measure_pages", "pages_of"]

HOST = b"127.0.0.1:8000"
TIMES = 7  # each page is opened, after once that does not count
BROWSERS = 64
SHOWN = 50  # runs that each browser follows
TWINS = (
    ("/runs", "/v1/runs?limit=50"),
    ("/runs?state=failed", "/v1/runs?state=failed&limit=50"),
    (f"/runs?flow={FLOW}", f"/v1/runs?flow={FLOW}&limit=50"),
    ("/claims", "/v1/claims?limit=50"),
)


class LocalPages:
    """Requests without a socket, one after the other."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._loop = asyncio.new_event_loop()

    def get(self, path: str) -> tuple[int, bytes, float]:
        """Return status, body and seconds."""
        began = time.perf_counter()
        status, body = self._loop.run_until_complete(self._get(path))
        return status, body, time.perf_counter() - began

    async def _get(self, path: str) -> tuple[int, bytes]:
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "client": ("127.0.0.1", 50_000),
            "scheme": "http",
            "headers": [(b"host", HOST)],
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    def close(self) -> None:
        self._loop.close()


def pages_of(pages: LocalPages, number: int) -> list[str]:
    """Return the pages that are opened, of a ledger with so many runs: lists, with and without filters, and things."""
    keys = [f"shop:order:{1_000_000 + nth}" for nth in (1, number // 2, number)]
    found = ["/", "/runs", "/review", "/approvals", "/claims", "/duplicates", "/webhooks", "/messages", "/findings"]
    found += ["/schedules", "/flows", f"/flows/{FLOW}", "/workers", "/acts", "/health", "/tokens"]
    states = ("done", "failed", "review", "waiting", "queued", "held", "flight")
    found += [f"/runs?{flow}state={state}" for state in states for flow in ("", f"flow={FLOW}&", "flow=other&")]
    found += [f"/runs?flow={FLOW}", "/runs?flow=other", "/runs?since=1h", "/runs?state=failed&since=24h"]
    found += [f"/runs?flow={FLOW}&prefix=shop%3Aorder%3A10", "/runs?prefix=shop%3Aorder%3A1", "/runs?prefix=nothing"]
    found += [f"/keys/{FLOW}/{quote(key, safe='')}" for key in keys]
    found += [f"/runs/{FLOW}%2F{quote(key, safe='')}" for key in keys]
    found += [f"/find?q={quote(key, safe='')}" for key in (*keys, "nothing-at-all", "shop:order:10000", "inv_1000001")]
    return found + _next_pages(pages)


def _next_pages(pages: LocalPages) -> list[str]:
    """Return the second and third page of lists, by their own cursors."""
    found = []
    for path in ("/v1/runs?limit=50", f"/v1/runs?flow={FLOW}&limit=50", "/v1/runs?state=failed&limit=50"):
        after = json.loads(pages.get(path)[1]).get("after")
        query = path.partition("?")[2].replace("limit=50", "").strip("&")
        found += [f"/runs?{query}&after={after}".replace("?&", "?")] if after else []
    return found


def measure_pages(site: Site, count: int, progress: Progress) -> Findings:
    """Every page over so many runs of five steps: the slowest one at the median, and the one that reads most."""
    findings = Findings()
    with ExitStack() as stack, progress.heat(f"{site.name}, pages over {count:,} runs", 2) as step:
        pages, counter = stack.enter_context(_opened(site, count))
        step()
        paths = pages_of(pages, count)
        taken = {path: _opened_often(pages, counter, path) for path in paths}
        slowest, most = (max(taken, key=lambda path: taken[path][nth]) for nth in (0, 1))
        findings.lines += [
            line("slowest page", site.name, spread([taken[slowest][0] * 1_000]), f"({slowest}):"),
            line("records of a page", site.name, spread([float(taken[most][1])]), f"({most}):"),
            line("page beside GET", site.name, spread([_beside(pages, *twin) for twin in TWINS])),
        ]
        step()
    return findings


@contextmanager
def _opened(site: Site, count: int) -> Iterator[tuple[LocalPages, ReadCounter]]:
    url = site.fresh()
    App(url).close()  # makes the schema
    with tempfile.TemporaryDirectory() as directory:
        site.insert(url, ledger_rows(make_templates(Path(directory)), count))
    with App(url) as app:
        declare_shop(app)
        _make_claims(app)
        pages = LocalPages(make_application(app))
        yield pages, ReadCounter(app.store.engine)  # type: ignore[attr-defined]
        pages.close()


def _make_claims(app: App) -> None:
    """Fill more than a page of the list of claims."""

    @app.once(key="order:{number}")
    def charge(number: int) -> dict[str, int]:
        return {"charged": number}

    for number in range(SHOWN * 2):
        charge(number)


def _opened_often(pages: LocalPages, counter: ReadCounter, path: str) -> tuple[float, int]:
    """Return the median of the seconds, and how many records one opening reads."""
    counter.clear()
    status, body, _ = pages.get(path)
    if status not in (200, 303):
        raise RuntimeError(f"{path} answered {status}: {body[:200]!r}")
    records = counter.records
    return statistics.median(pages.get(path)[2] for _ in range(TIMES)), records


def _beside(pages: LocalPages, page: str, twin: str) -> float:
    """Return how many times as long a page takes as the same list over HTTP. They take turns."""
    pages.get(page), pages.get(twin)
    return statistics.median(pages.get(page)[2] / pages.get(twin)[2] for _ in range(TIMES * 3))


def measure_browsers(site: Site, plan: Plan, progress: Progress) -> Findings:
    """New webhooks with and without open browsers, in turns on one server."""
    ratios: list[float] = []
    part = f"{site.name}, webhooks with {BROWSERS} open browsers"
    with DoorServer(site.fresh()) as server, ExitStack() as stack, progress.heat(part, plan.rounds) as step:
        callers = server.new().callers
        stack.callback(callers.close)
        each = max(1, round(plan.slot * 4 * callers.count / max(callers.time(1), 1e-6) / callers.count))
        for nth in range(plan.rounds):
            ratios.append(_ratio(server, callers, each, browsers_first=nth % 2 == 1))
            step()
        shares = [_share_of_a_core(server, callers, plan.slot * 40) * 100 for _ in range(3)]
    return Findings(
        lines=[
            line("webhooks with browsers", site.name, spread(ratios)),
            line("browsers", site.name, spread(shares)),
        ]
    )


def _share_of_a_core(server: DoorServer, callers: Callers, seconds: float) -> float:
    """Return what browsers add to the processor time of a server that starts runs all the while. Unlike a throughput,
    it says the same on a machine that is busy with something else."""
    alone = _busy(server, callers, seconds)
    with _browsers(server.address):
        return _busy(server, callers, seconds) - alone


def _busy(server: DoorServer, callers: Callers, seconds: float) -> float:
    """Return the share of a core that the server uses while one delivery a second comes on each connection."""
    before, began = server.processor_time, time.monotonic()
    while time.monotonic() < began + seconds:
        callers.time(1)
        time.sleep(min(1.0, seconds / 4))
    return (server.processor_time - before) / (time.monotonic() - began)


def _ratio(server: DoorServer, callers: Callers, each: int, *, browsers_first: bool) -> float:
    """Return the throughput with browsers, beside that without."""
    if browsers_first:
        with _browsers(server.address):
            watched = callers.time(each)
        return callers.time(each) / watched
    alone = callers.time(each)
    with _browsers(server.address):
        return alone / callers.time(each)


@contextmanager
def _browsers(address: tuple[str, int]) -> Iterator[None]:
    """Event streams as browsers open them, read by one thread."""
    runs = _latest_runs(address)
    streams = [_stream(address, runs) for _ in range(BROWSERS)]
    stop = threading.Event()
    reader = threading.Thread(target=_read_all, args=(streams, stop))
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()
        for one in streams:
            one.close()


def _latest_runs(address: tuple[str, int]) -> list[str]:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", f"/v1/runs?limit={SHOWN}", headers={"host": f"{address[0]}:{address[1]}"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return [run["run"] for run in found["runs"]]


def _stream(address: tuple[str, int], runs: list[str]) -> socket.socket:
    made = socket.create_connection(address, timeout=30)
    query = f"runs={','.join(runs)}&since={time.time()}"
    made.sendall(f"GET /live?{query} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\n\r\n".encode())
    if b" 200 " not in made.recv(4096)[:16]:
        raise RuntimeError("an event stream was refused")
    return made


def _read_all(streams: list[socket.socket], stop: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for one in streams:
            selector.register(one, selectors.EVENT_READ)
        while not stop.is_set():
            for key, _ in selector.select(0.1):
                if not key.fileobj.recv(65_536):  # type: ignore[union-attr]
                    selector.unregister(key.fileobj)
