"""`serve`: an app behind its doors, with a worker beside them, until it is told to leave."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from ..app import App
from ..drive import block
from ..errors import Misuse, StoreError
from ..flows.workers.worker import Worker
from ..shell import store_words, typed
from .access import Trust, is_loopback
from .application import make_application
from .limits import Limits
from .serving import Serving, bound, url_of
from .station import Station
from .tokens import any_token

__all__ = ["Options", "serve", "trust_of", "warn_of_missing_secrets", "warn_of_open_door"]

log = logging.getLogger("twiceproof.server")

CREATE = ("tokens", "create", "NAME", "--scope", "admin")
AGAIN = 5.0  # seconds


class Options(Struct, frozen=True):
    """What `twiceproof serve` was told. `concurrency` 0: no worker in this process."""

    host: str = "127.0.0.1"
    port: int = 8000
    concurrency: int = 10
    drain: float = 30.0
    lame_duck: float = 5.0
    open: bool = False
    behind_proxy: bool = False
    limits: Limits = Limits()


def serve(app: App, options: Options, announce: Callable[[str], None]) -> int:
    """How many runs were left unfinished here. `announce` is told the address once it can be called."""
    trust = trust_of(app, options)
    application = make_application(app, limits=options.limits, trust=trust, behind_proxy=options.behind_proxy)
    made = bound(options.host, options.port)
    warn_of_open_door(app, trust, url_of(made))
    warn_of_missing_secrets(app)
    crew = Crew(app, options, application.station) if options.concurrency else None
    if crew is not None:
        crew.thread.start()
    serving = Serving(
        application, drain=options.drain, lame_duck=options.lame_duck, announce=lambda: announce(url_of(made))
    )
    serving.run(sockets=[made])
    return 0 if crew is None else crew.leave(options.drain)


def trust_of(app: App, options: Options) -> Trust:
    """Beyond this machine only with tokens, or with the word that it is meant so. A proxy leads beyond it."""
    if options.open:
        return "everybody"
    if is_loopback(options.host) and not options.behind_proxy:
        return "loopback"
    if not block(any_token(app.store)):
        raise Misuse(
            f"{_shown_place(options)} can be reached from elsewhere, and no token exists: everybody could do "
            f"everything; run: {_create(app)}, or serve on 127.0.0.1 without a proxy, or say --open if it is meant so."
        )
    return "nobody"


def _create(app: App) -> str:
    return typed(*store_words(app.settings.store), *CREATE)


def warn_of_open_door(app: App, trust: Trust, url: str) -> None:
    """Said at every start without a token: a proxy or tunnel that is put before it later says nothing by itself."""
    if trust == "nobody" or _has_token(app):
        return
    if trust == "everybody":
        log.warning("INSECURE: no token exists, and with --open whoever reaches %s may do everything, from anywhere; "
                    "make a token: %s", url, _create(app))  # fmt: skip
        return
    log.warning(
        "OPEN: no token exists, so whoever reaches %s is the operator and may do everything, through a proxy or a "
        "tunnel on this machine, too; what shows signs of one is refused, but not every one shows any; make a "
        "token: %s",
        url, _create(app),
    )  # fmt: skip


def _has_token(app: App) -> bool:
    try:
        return block(any_token(app.store))
    except StoreError:
        return False  # not known: better said once too often


def _shown_place(options: Options) -> str:
    return f"{options.host} behind a proxy" if is_loopback(options.host) else options.host


def warn_of_missing_secrets(app: App) -> None:
    """Said at the start: later there is nothing but senders that are not believed."""
    for hook in app.hooks.values():
        if not any(hook.secrets()):
            log.warning("nothing that %s sends can be believed, its secret is not set; set it and restart", hook.name)


class Crew:
    """The worker in this process, on a thread of its own. It begins to leave when no request is under way any more.

    One that breaks is followed by another: without any, events would be taken in and nobody would work on them.
    """

    def __init__(self, app: App, options: Options, station: Station) -> None:
        self._app = app
        self._concurrency = options.concurrency
        self._station = station
        self._leaving = threading.Event()
        self.worker = self._hired()
        self.left = 0
        self.thread = threading.Thread(target=self._run, args=(options.drain,), name="twiceproof-worker", daemon=True)

    def _hired(self) -> Worker:
        worker = self._station.worker = self._app.worker(concurrency=self._concurrency)
        return worker

    def _run(self, patience: float) -> None:
        while not self._leaving.is_set():  # asked after the hiring: who leaves meanwhile drains the one before
            try:
                self.left = self.worker.run(patience=patience)
                return
            except Exception:
                log.exception("the worker in this process has ended; another one begins in %g s", AGAIN)
            self._leaving.wait(AGAIN)
            self.worker = self._hired()

    def leave(self, patience: float) -> int:
        until = time.monotonic() + patience + 1.0
        self._leaving.set()
        self.worker.drain()
        self.thread.join(max(0.0, until - time.monotonic()))
        return self.left if not self.thread.is_alive() else self.worker.taken
