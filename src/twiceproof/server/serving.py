"""Runs the application on a socket: uvicorn, with our protocol, our signals and our way to leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

import uvicorn

from ..errors import Misuse
from .application import Application
from .protocol import GuardedProtocol, guarded

__all__ = ["Serving", "bound", "url_of"]

log = logging.getLogger("twiceproof.server")

EVERY = 5  # ticks of a tenth of a second
BACKLOG = 2_048


class Serving(uvicorn.Server):
    """On SIGTERM it is ready no more, but goes on answering for `lame_duck` seconds, until balancers look elsewhere.

    Every answer ends its connection meanwhile. Then, or on Ctrl-C at once, nothing new is accepted, and what is under
    way may end; on the second signal it stops at once.
    """

    def __init__(
        self, application: Application, *, drain: float, lame_duck: float = 0.0, announce: Callable[[], None]
    ) -> None:
        self.station = application.station
        self._lame_duck = lame_duck
        self._stays_until: float | None = None
        protocol = guarded(application.limits, application.station.metrics)
        config = uvicorn.Config(
            application, http=protocol, ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=max(1, round(drain)), backlog=BACKLOG,
        )  # fmt: skip
        super().__init__(config)
        self._announce = announce

    async def on_tick(self, counter: int) -> bool:
        if counter % EVERY == 0:
            self._look()
        if self._stays_until is not None and self._now() >= self._stays_until:
            self.should_exit = True
        return await super().on_tick(counter)

    def _now(self) -> float:
        return self.station.app.clock.monotonic()

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(GuardedProtocol, connection).look(now)
        self.station.metrics.connections.set(len(self.server_state.connections))
        self.station.app.tidy_up_if_due()  # a server of claims alone holds none itself, and nobody else would

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Told only now: whoever knows the address can call it, and send us a signal."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is here now stays: looking through it again and again took a tenth of a new webhook
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Nobody may keep us by sending slowly. Who has connected already is let in: closing would reset them."""
        await asyncio.sleep(0)  # the loop accepts what waits
        await asyncio.sleep(0)
        looking = asyncio.create_task(self._keep_looking())
        await super().shutdown(sockets)
        looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(EVERY / 10)
            self._look()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises a signal again once it is done, which would end us before the worker has drained."""
        before = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.station.draining:  # told a second time
            self.force_exit = self.should_exit = True
            return
        self.station.draining = True
        if sig == signal.SIGTERM and self._lame_duck:
            self._stays_until = self._now() + self._lame_duck
        else:
            self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """Before anything is served: whoever starts us learns the address, also of port 0, and a taken one is refused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)  # without the protocol asyncio would leave Nagle's delay on
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise Misuse(
            f"{host} port {port} cannot be listened at ({error.strerror or error}); choose with --host and --port."
        ) from None
    return made


def url_of(made: socket.socket) -> str:
    host, port = made.getsockname()[:2]
    return f"http://[{host}]:{port}" if made.family == socket.AF_INET6 else f"http://{host}:{port}"
