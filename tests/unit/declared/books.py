"""A real HTTP server that keeps what it is told, and how a flow's file is declared in tests."""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from twiceproof import App, load_flows

ORDER = {"id": 7, "total": 120.5, "email": "ada@example.com", "lines": [{"sku": "a"}, {"sku": "b"}]}
HEAD = "flow: bill\ninput: {order: {id: integer, total: number, email: text}}\nkey: shop:order:{order.id}\n"


class Books:
    """A real HTTP server that keeps what it is told. `refuses` are answers by path."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.invoices: list[dict[str, Any]] = []
        self.refuses: dict[str, int] = {}
        self._numbers = itertools.count(1)
        books = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                headers = {name.lower(): value for name, value in self.headers.items()}
                books.requests.append((self.command, self.path, body, headers))
                status = books.refuses.get(self.path, 200)
                text = json.dumps(books.told(self.command, self.path, body)).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - the names it looks for

            def log_message(self, *_: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def told(self, method: str, path: str, body: Any) -> Any:
        if method == "GET":
            wanted = path.partition("reference=")[2]
            return {"items": [one for one in self.invoices if str(one["reference"]) == wanted]}
        if path == "/invoices" and path not in self.refuses:
            made = {"id": f"inv_{next(self._numbers)}", **body}
            self.invoices.append(made)
            return made
        return {"path": path}

    def paths(self, method: str = "POST") -> list[str]:
        return [path for verb, path, _, _ in self.requests if verb == method]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def declare(app: App, folder: Path, text: str, connections: str = "") -> Any:
    folder = folder / "flows"
    folder.mkdir(exist_ok=True)
    (folder / "bill.flow.yaml").write_text(text)
    (folder / "connections.yaml").write_text(connections)
    return load_flows(app, folder)["bill"]


def books_only(books: Books) -> str:
    return f'books: {{live: {{http: "{books.url}", bearer: env:BOOKS_TOKEN}}}}\n'
