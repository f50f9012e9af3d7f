"""nginx in front of one HTTP server, with the shortest configuration that people write."""

import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.servers.binaries import nginx_programs
from tests.servers.process import ServerProcess, Unavailable

CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://{upstream};
            {more}
        }}
    }}
}}
"""


@cache
def _program() -> Path:
    for program in nginx_programs():
        return program
    raise Unavailable("nginx cannot be had: not on PATH nor in /usr/sbin (Debian package `nginx-light`)")


class Nginx(ServerProcess):
    """Passes everything on to `upstream` (host:port). `more`: further directives beside `proxy_pass`."""

    kind: ClassVar[str] = "nginx"

    def __init__(self, upstream: str, more: Sequence[str] = ()) -> None:
        super().__init__()
        self._upstream = upstream
        self._more = more

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def command(self) -> list[str]:
        path = self.directory / "nginx.conf"
        directives = "\n            ".join(self._more)
        path.write_text(CONFIGURATION.format(port=self.port, upstream=self._upstream, more=directives))
        path.chmod(0o644)  # the directory is private
        return [str(_program()), "-e", "stderr", "-p", str(self.directory), "-c", str(path)]

    def ready(self) -> bool:
        try:
            socket.create_connection(self.address, timeout=1).close()
        except OSError:
            return False
        return True
