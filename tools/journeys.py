"""`python -m tools.journeys`: counts the source files and function calls that one everyday call passes through.

A call that passes through many files is hard to follow, so the counts have limits, held by tests/unit/test_house.py.
`make lint` prints them beside the counts of the source tree. CONTRIBUTING shows three journeys, file by file.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tools.source_tree import SOURCE, SourceTree, import_seconds, loaded_modules

__all__ = ["LIMITS", "MODULES", "Journey", "Limit", "listing", "measured", "walked"]

WIDTH = 120
SECRET = "whsec_" + "journey"

SHOP = """
import os
from twiceproof import Absent, App, check

app = App(os.environ["JOURNEY_LEDGER"])

@app.once(key="order:{order}")
def charge(order):
    return {"receipt": order}

@app.step(repeat=check(lambda order: Absent, settling=0))
def invoice(order):
    if os.environ.get("JOURNEY_CRASH"):
        os._exit(9)
    return order

@app.flow(key="order:{order}", lease=1)
def sync_order(order):
    return invoice(order)

@app.flow(key="{event[id]}")
def book(event):
    return event["id"]

app.webhook("stripe", secret=os.environ["JOURNEY_SECRET"], start=book)
"""


class Limit(NamedTuple):
    """How many there may be now, and how many there should be one day. Lower `now` when a change makes it possible."""

    now: int
    goal: int


LIMITS: Mapping[str, Limit] = {
    "guarded call": Limit(now=20, goal=20),
    "duplicate": Limit(now=20, goal=18),
    "start": Limit(now=22, goal=25),
    "resume": Limit(now=40, goal=40),
    "webhook": Limit(now=38, goal=38),
}
MODULES = Limit(now=110, goal=110)  # of ours, loaded by `from twiceproof import App`


class Journey(NamedTuple):
    """The files in the order in which they were entered, each with its first function; and the number of calls."""

    files: dict[str, str]
    calls: int


def measured() -> dict[str, Journey]:
    """The journeys, walked in a process of their own: what this one has loaded and started stays out of them."""
    command = [sys.executable, "-m", "tools.journeys", "--json"]
    done = subprocess.run(command, cwd=SOURCE.parents[1], capture_output=True, text=True, timeout=120, check=True)
    return {name: Journey(**found) for name, found in json.loads(done.stdout).items()}


def listing(journey: Journey) -> list[str]:
    """One line for each stay in a folder: `claims/  guard: enter_claim → states: decide`."""
    lines = []
    for folder, entries in groupby(journey.files.items(), lambda entry: str(Path(entry[0]).parent)):
        stops = " → ".join(f"{Path(path).stem}:\xa0{function}" for path, function in entries)
        first = f"{'' if folder == '.' else folder + '/':<18} "
        lines += textwrap.wrap(stops, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
    return [line.replace("\xa0", " ") for line in lines]  # a function stays on the line of its file


@contextmanager
def traced() -> Iterator[Callable[[], Journey]]:
    """Record the calls of our own functions on this thread and on every thread that starts meanwhile."""
    files: dict[str, str] = {}
    calls = [0]

    def hook(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code  # of a function: the bodies of modules and classes are not optimized
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(str(SOURCE)):
            files.setdefault(code.co_filename.removeprefix(f"{SOURCE}/"), _plain_name(code.co_qualname))
            calls[0] += 1

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        yield lambda: Journey(dict(files), calls[0])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _plain_name(qualified: str) -> str:
    """`wrapped.<locals>.call` is `call`; a generator expression or a lambda has the name of its function."""
    names = [name for name in qualified.split(".<locals>.") if not name.startswith("<")]
    return names[-1]


def walked() -> dict[str, Journey]:
    """Each journey on a SQLite file, after one like it: modules are loaded, and connections are open."""
    with tempfile.TemporaryDirectory() as folder:
        shop = _shop(Path(folder))
        with shop.app:
            return {**_claims(shop), **_flows(shop, folder), "webhook": _delivered(shop.app)}


def _shop(folder: Path) -> Any:
    (folder / "journey_shop.py").write_text(SHOP)
    os.environ.update(JOURNEY_LEDGER=f"sqlite:///{folder}/ledger.db", JOURNEY_SECRET=SECRET)
    sys.path.insert(0, str(folder))
    import journey_shop  # type: ignore[import-not-found]  # written above

    return journey_shop


def _claims(shop: Any) -> dict[str, Journey]:
    for _ in range(2):  # a first call, and a duplicate
        shop.charge(1)
    with traced() as seen:
        shop.charge(2)
        first = seen()
    with traced() as seen:
        shop.charge(2)
        return {"guarded call": first, "duplicate": seen()}


def _flows(shop: Any, folder: str) -> dict[str, Journey]:
    shop.sync_order.start(1)
    with traced() as seen:
        shop.sync_order.start(2)
        started = seen()
    return {"start": started, "resume": _resumed(shop, folder)}


def _resumed(shop: Any, folder: str) -> Journey:
    """A worker dies in a step; the next one checks whether the step happened, and continues the run."""
    code = "import journey_shop; journey_shop.app.worker(concurrency=1).run(until_idle=True)"
    path = os.pathsep.join([folder, str(SOURCE.parent)])
    environment = {**os.environ, "JOURNEY_CRASH": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, timeout=60, check=False)
    time.sleep(1.1)  # until the lease of the dead worker has expired
    shop.app.worker(concurrency=1)  # loads its modules
    with traced() as seen:
        shop.app.worker(concurrency=1).run(until_idle=True)
        return seen()


def _delivered(app: Any) -> Journey:
    from twiceproof.server.app import make_application

    application = make_application(app)
    asyncio.run(_post(application, b'{"id": "evt_1", "object": "event", "type": "charge.succeeded"}'))
    with traced() as seen:
        asyncio.run(_post(application, b'{"id": "evt_2", "object": "event", "type": "charge.succeeded"}'))
        return seen()


async def _post(application: Any, body: bytes) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(_scope(body), receive, send)
    if sent[0]["status"] not in (200, 202):
        raise SystemExit(f"the webhook was answered with {sent[0]['status']}: {sent[1:]!r}")


def _scope(body: bytes) -> dict[str, Any]:
    """A signed delivery from Stripe, as an ASGI server passes it on."""
    now = int(time.time())
    mac = hmac.new(SECRET.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    return {
        "type": "http",
        "method": "POST",
        "path": "/hooks/stripe",
        "raw_path": b"/hooks/stripe",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"stripe-signature", f"t={now},v1={mac}".encode()),
        ],
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
    }


def main() -> None:
    if "--json" in sys.argv:
        print(json.dumps({name: journey._asdict() for name, journey in walked().items()}))
        return
    for name, journey in measured().items():
        print(f"{name:13} {_beside(len(journey.files), LIMITS[name], 'files')}, {journey.calls:,} calls")
    for what, count in SourceTree().counts():
        print(f"{what:31} {count:>7}")
    print(f"{'modules loaded by App':31} {_beside(len(loaded_modules()), MODULES, 'modules')}")
    print(f"{'time to import App':31} {import_seconds() * 1000:>4.0f} ms")


def _beside(count: int, limit: Limit, what: str) -> str:
    return f"{count:3} {what} (limit {limit.now}, goal {limit.goal})"


if __name__ == "__main__":
    main()
