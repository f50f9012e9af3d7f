"""http.change: one document, many writers, each change applied once."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from twiceproof import Absent, Happened, Misuse, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects import http
from twiceproof.effects.base import Effect
from twiceproof.effects.etag import MOST_MARKS, MOST_TRIES, examine_etags
from twiceproof.effects.http_client import shared_client

KEY = "tp_0123456789abcdef0123456789abcdef"


class Documents(ThreadingHTTPServer):
    """One JSON document with an ETag. It may ignore conditions, keep its ETag, or lose the answers to writes."""

    daemon_threads = True

    def __init__(self, document: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.document = document
        self.version = 1
        self.mutex = threading.Lock()
        self.writes = 0
        self.asked: list[str] = []
        self.ignores_conditions = False
        self.keeps_etag = False
        self.has_etag = True
        self.refuses_own = False  # answers 412 to the ETag that it gave
        self.weak = False
        self.lost: dict[int, str] = {}  # by the number of a write: "before" it is carried out, or "after"
        self.interfere: Any = None  # called before each write

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/doc"

    @property
    def etag(self) -> str:
        return f"{'W/' if self.weak else ''}" + ('"1"' if self.keeps_etag else f'"{self.version}"')


class Handler(BaseHTTPRequestHandler):
    server: Documents
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append("GET")
        with self.server.mutex:
            self._answer(200, self.server.document)

    def do_PUT(self) -> None:
        server, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        server.asked.append("PUT")
        with server.mutex:
            server.writes += 1
            fate = server.lost.get(server.writes, "")
            if server.interfere is not None:
                server.interfere(server)
            fits = self.headers["If-Match"] == server.etag and not server.refuses_own
            if fate != "before" and (server.ignores_conditions or fits):
                server.document = msgspec.json.decode(body)
                server.version += 1
                status = 200
            else:
                status = 412
            if fate:
                self.close_connection = True
                return
            self._answer(status, server.document if status == 200 else {"error": "changed"})

    def _answer(self, status: int, value: Any) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.server.has_etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def serving(document: Any) -> Iterator[Documents]:
    server = Documents(document)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        shared_client().close()
        server.shutdown()
        server.server_close()
        thread.join()


def paid(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "status": "paid"}


def counted(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "count": document["count"] + 1}


def signing(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: {**document, f"read by {number}": True}


def changing(server: Documents, change: Any = paid, **options: Any) -> Any:
    made = http.change(server.url, change, **options)
    return msgspec.structs.replace(made, pause=lambda seconds: None)


def test_a_change_is_written_if_the_document_is_unchanged() -> None:
    with serving({"status": "open", "total": 5}) as server:
        effect = changing(server)
        assert isinstance(effect, Effect)
        assert effect.repeat.kind == "safe"
        assert effect.perform(KEY) == server.document == {"status": "paid", "total": 5}


def test_a_change_that_is_there_is_not_written_again() -> None:
    with serving({"status": "paid"}) as server:
        assert changing(server).perform(KEY) == {"status": "paid"}
        assert server.writes == 0


def test_a_writer_that_was_first_is_not_overwritten() -> None:
    def first(server: Documents) -> None:
        if server.writes == 1:
            server.document, server.version = {**server.document, "total": 6}, 2

    with serving({"status": "open", "total": 5}) as server:
        server.interfere = first
        changing(server).perform(KEY)
        assert server.document == {"status": "paid", "total": 6}
        assert server.asked == ["GET", "PUT", "GET", "PUT"]


def test_writers_who_are_always_first_end_the_try_cleanly() -> None:
    def always(server: Documents) -> None:
        server.version += 1

    with serving({"status": "open"}) as server:
        server.interfere = always
        with pytest.raises(NotDone, match="another writer was first 5 times"):
            changing(server).perform(KEY)
        assert server.writes == MOST_TRIES
        assert server.document == {"status": "open"}


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.parametrize(("change", "mark"), [(paid, ""), (counted, "applied")])
def test_silence_after_a_write_is_resolved_without_a_second_application(fate: str, change: Any, mark: str) -> None:
    with serving({"status": "open", "count": 0}) as server:
        server.lost = {1: fate}
        changing(server, change, mark=mark).perform(KEY)
        assert server.writes == (2 if fate == "before" else 1)
        assert server.document["count"] == (1 if mark else 0)
        assert server.document.get("applied", []) == ([KEY] if mark else [])


@pytest.mark.parametrize("fate", ["before", "after"])
def test_silence_at_the_last_try_is_looked_at_once_more(fate: str) -> None:
    def others(server: Documents) -> None:
        if server.writes < MOST_TRIES:
            server.version += 1

    with serving({"count": 0}) as server:
        server.interfere, server.lost = others, {MOST_TRIES: fate}
        effect = changing(server, counted, mark="applied")
        if fate == "after":
            assert effect.perform(KEY)["count"] == 1
        else:
            with pytest.raises(OutcomeUnknown):
                effect.perform(KEY)
        assert server.document["count"] == (1 if fate == "after" else 0)


def test_a_refusal_after_a_silent_write_does_not_make_it_undone() -> None:
    """The read after it is refused for good; the same refusal without such a write is clean."""

    def close(server: Documents) -> None:
        server.has_etag = False

    for fate, error in (("after", OutcomeUnknown), ("", NotDone)):
        with serving({"status": "open"}) as server:
            server.lost, server.interfere = ({1: fate} if fate else {}), close
            server.has_etag = bool(fate)
            with pytest.raises(error, match="has no ETag"):
                changing(server).perform(KEY)
            assert server.document["status"] == ("paid" if fate else "open")


@pytest.mark.parametrize("weak", [True, False])
def test_a_server_that_refuses_its_own_etag_is_named(weak: bool) -> None:
    with serving({"status": "open"}) as server:
        server.refuses_own, server.weak = True, weak
        with pytest.raises(NotDone, match="the ETag that it gives" + (", which is a weak one" if weak else ";")):
            changing(server).perform(KEY)
        assert server.document == {"status": "open"}


def test_a_change_that_adds_needs_a_mark() -> None:
    with serving({"count": 0}) as server:
        with pytest.raises(Misuse, match="mark="):
            changing(server, counted).perform(KEY)
        assert server.writes == 0
        effect = changing(server, counted, mark="applied")
        assert [effect.perform(KEY)["count"], effect.perform(KEY)["count"]] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "mark"), [(signing, ""), (lambda number: counted, "applied")])
def test_fifty_writers_change_one_document_and_each_is_applied_once(make: Any, mark: str) -> None:
    def one(number: int) -> None:
        effect = changing(server, make(number), mark=mark)
        for _ in range(200):
            try:
                effect.perform(f"tp_{number:032x}")
                break
            except (NotDone, OutcomeUnknown):
                continue
        else:
            raise AssertionError("never applied")

    with serving({"status": "open", "count": 0}) as server:
        server.lost = {number: "after" if number % 2 else "before" for number in range(3, 60, 7)}
        with ThreadPoolExecutor(50) as pool:
            list(pool.map(one, range(50)))
        if mark:
            assert server.document["count"] == 50
            assert len(set(server.document["applied"])) == len(server.document["applied"]) == 50
        else:
            assert server.document == {
                "status": "open",
                "count": 0,
                **{f"read by {number}": True for number in range(50)},
            }


def test_a_look_finds_the_mark_or_the_change() -> None:
    with serving({"status": "open", "count": 0}) as server:
        marked, plain = changing(server, counted, mark="applied"), changing(server)
        assert marked.look(KEY) == Absent()
        assert isinstance(plain.look(KEY), Unknown)
        assert (marked.repeat.kind, plain.repeat.kind) == ("check", "safe")
        marked.perform(KEY)
        plain.perform(KEY)
        assert marked.look(KEY) == plain.look(KEY) == Happened(server.document)
        assert server.writes == 2
    assert isinstance(marked.look(KEY), Unknown)


def test_a_mark_that_may_have_been_dropped_is_unknown() -> None:
    with serving({"count": 0, "applied": [f"tp_{number:032x}" for number in range(MOST_MARKS - 1)]}) as server:
        effect = changing(server, counted, mark="applied")
        assert effect.look(KEY) == Absent()
        effect.perform(KEY)
        assert isinstance(effect.look(KEY), Happened)
        effect.perform("tp_" + "f" * 32)
        assert len(server.document["applied"]) == MOST_MARKS
        assert isinstance(effect.look("tp_" + "e" * 32), Unknown)


# -- servers that do not protect -----------------------------------------------------------------


def test_a_server_without_etags_is_named() -> None:
    with serving({"status": "open"}) as server:
        server.has_etag = False
        with pytest.raises(NotDone, match="has no ETag"):
            changing(server).perform(KEY)
        assert server.writes == 0


def test_an_etag_that_does_not_change_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with serving({"status": "open"}) as server, caplog.at_level(logging.WARNING, "twiceproof"):
        changing(server).perform(KEY)
        assert caplog.messages == []
        server.document, server.keeps_etag = {"status": "open"}, True
        changing(server).perform(KEY)
    assert "its ETag did not change" in caplog.messages[0]


@pytest.mark.parametrize(
    ("ignores", "keeps", "found"),
    [(False, False, []), (True, False, ["ignores If-Match"]), (False, True, ["ETag does not change"])],
)
def test_an_examination_names_what_a_server_does_not_do(ignores: bool, keeps: bool, found: list[str]) -> None:
    with serving({"status": "open"}) as server:
        server.ignores_conditions, server.keeps_etag = ignores, keeps
        told = examine_etags(changing(server), KEY)
        assert server.document == {"status": "open"}
    assert len(told) == len(found)
    assert all(part in one for part, one in zip(found, told, strict=True))


def test_a_condition_of_ones_own_is_refused() -> None:
    with pytest.raises(Misuse, match="writes If-Match itself"):
        http.change("https://example.com/doc", paid, headers={"If-Match": "*"})


def setting(status: str, client: Any = None) -> Effect[Any]:
    def change(document: dict[str, Any], by: str = "ada") -> dict[str, Any]:
        return {**document, "status": status, "client": bool(client)}

    return http.change("https://example.com/doc", change)


def test_a_change_with_other_captured_values_is_another_effect() -> None:
    assert setting("paid").describe() == setting("paid").describe()
    assert setting("paid").describe() != setting("open").describe()
    assert "paid" not in str(setting("paid").describe())


def test_what_is_not_plain_is_no_part_of_the_effect() -> None:
    assert setting("paid", object()).describe() == setting("paid", threading.Lock()).describe()


def test_a_change_by_partial_is_described_by_its_function_and_values() -> None:
    def change(status: str, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "status": status}

    def described(status: str) -> str:
        return str(http.change("https://example.com/doc", functools.partial(change, status)).describe()["change"])

    first, other, again = described("paid"), described("open"), described("paid")
    assert first == again != other and "change" in first
