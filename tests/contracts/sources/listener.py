"""A server over loopback with an app behind it, for what calls one."""

from __future__ import annotations

import http.server
import threading
from typing import Any

from twiceproof import App


class Listener:
    def __init__(self, app: App) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.paths.append(self.path)
                name = self.path.partition("?")[0].rpartition("/")[2]
                url = f"http://{self.headers['host']}{self.path}"
                reply = app.receive(name, body, list(self.headers.items()), url=url)
                self.send_response(reply.status)
                for header in reply.headers:
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *words: Any) -> None:
                pass

        self.paths: list[str] = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def url(self, name: str) -> str:
        return f"http://{self.address}/hooks/{name}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
