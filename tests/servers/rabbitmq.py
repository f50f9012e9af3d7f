"""A RabbitMQ of our own: Debian's programs, an `epmd` of its own on loopback, everything in one directory."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.servers.account import give
from tests.servers.address import free_port
from tests.servers.binaries import rabbitmq_programs
from tests.servers.process import ServerProcess, Unavailable

CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 1GB
log.console = true
log.console.level = info
log.file = false
"""
DONE = "Server startup complete"


@cache
def _programs() -> tuple[Path, Path]:
    for found in rabbitmq_programs():
        return found
    raise Unavailable("RabbitMQ cannot be had: no rabbitmq-server and epmd here (Debian package `rabbitmq-server`)")


class Epmd(ServerProcess):
    """Erlang's port mapper. Started by us, or the server would leave one behind that outlives it."""

    kind: ClassVar[str] = "epmd"

    def command(self) -> list[str]:
        return [str(_programs()[1]), "-port", str(self.port), "-address", self.host]

    def ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError:
            return False
        return True


class RabbitServer(ServerProcess):
    """One node, with the user `guest`. About eight seconds to start."""

    kind: ClassVar[str] = "rabbitmq"

    def __init__(self) -> None:
        super().__init__()
        self._epmd = Epmd()
        self._peer_port = 0

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    def prepare(self) -> None:
        self._peer_port = free_port()
        for name in ("home", "log", "data"):
            (self.directory / name).mkdir()
            give(self.directory / name)
        plugins = self.directory / "enabled_plugins"
        plugins.write_text("[].\n")
        give(plugins)

    def command(self) -> list[str]:
        self._epmd.start()
        (self.directory / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (self.directory / "rabbitmq.conf").chmod(0o644)
        settings = {
            "HOME": self.directory / "home",
            "ERL_EPMD_PORT": self._epmd.port,
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": f"twiceproof{self._peer_port}@localhost",
            "RABBITMQ_DIST_PORT": self._peer_port,
            "RABBITMQ_CONFIG_FILE": self.directory / "rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "enabled_plugins",
            "RABBITMQ_MNESIA_BASE": self.directory / "data",
            "RABBITMQ_LOG_BASE": self.directory / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": self.directory / "pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), str(_programs()[0])]

    def ready(self) -> bool:
        return DONE in self.log()

    def close(self) -> None:
        super().close()
        self._epmd.close()
