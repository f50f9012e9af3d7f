"""Our request for a transaction says what the official client's says: Azurite is less strict than the service."""

import json
import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("azure.data.tables")

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ServiceResponseError
from azure.data.tables import TableClient, UpdateMode

from tests.servers.azurite import KEY
from twiceproof.clock import system_clock
from twiceproof.stores.azure_table import batch
from twiceproof.stores.azure_table.connection import AzureTable, meaning
from twiceproof.stores.azure_table.url import AzureTableUrl
from twiceproof.stores.base import Disconnected
from twiceproof.stores.rows.table import ABSENT, ANY, Change, Throttled

ETAG = "W/\"datetime'2026-11-19T15%3A00%3A00.0000000Z'\""
DATES = {"date", "x-ms-date"}  # in parts the client repeats its own
OPERATION = re.compile(rb"\r\n\r\n(\S+) (\S+) HTTP/1.1\r\n(.*?)\r\n\r\n(.*?)\r\n--", re.DOTALL)


class Service(BaseHTTPRequestHandler):
    """Keeps what it hears, and gives the answer that was laid out for it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        status, headers, content = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.heard, server.answer = [], (503, {}, b"")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}/devstoreaccount1"
    account = f"AccountName=devstoreaccount1;AccountKey={KEY};TableEndpoint={endpoint};"
    with TableClient.from_connection_string(account, "ledger", retry_total=0) as client:
        server.client = client
        yield server
    server.shutdown()
    server.server_close()


def operations(body):
    for verb, url, lines, entity in OPERATION.findall(body):
        headers = dict(line.lower().split(": ", 1) for line in lines.decode().split("\r\n"))
        values = json.loads(entity) if entity else {}
        strings = {name for name, value in values.items() if value == "Edm.String"}
        yield verb, url, headers, {name: value for name, value in values.items() if name not in strings}


def test_each_operation_is_asked_for_as_the_official_client_does(service):
    places = [{"PartitionKey": "1", "RowKey": key} for key in "abcd"]
    entities = [{**place, "v0": b"hello"} for place in places]
    guard = {"etag": ETAG, "match_condition": MatchConditions.IfNotModified}
    theirs = [
        ("create", entities[0]),
        ("update", entities[1], {"mode": UpdateMode.REPLACE, **guard}),
        ("upsert", entities[2], {"mode": UpdateMode.REPLACE}),
        ("delete", places[3], guard),
    ]
    expected = [ABSENT, ETAG, ANY, ETAG]
    ours = [Change((1, key), expected[nth], None if key == "d" else b"hello") for nth, key in enumerate("abcd")]
    with suppress(HttpResponseError):
        service.client.submit_transaction(theirs)
    with suppress(HttpResponseError):
        batch.send(service.client, ours)
    (path, headers, body), (our_path, our_headers, our_body) = service.heard
    assert our_path == path and set(headers) <= set(our_headers)
    assert our_headers["x-ms-version"] == headers["x-ms-version"]
    pairs = list(zip(operations(body), operations(our_body), strict=True))
    assert len(pairs) == 4
    for (verb, url, inner, entity), (our_verb, our_url, our_inner, our_entity) in pairs:
        assert (our_verb, our_url, our_entity) == (verb, url, entity)
        assert set(inner) - DATES - set(our_inner) <= {"content-length"}
        for name in ("if-match", "x-ms-version", "dataserviceversion"):
            assert our_inner.get(name) == inner.get(name)


BUSY = b'{"odata.error":{"code":"ServerBusy","message":{"lang":"en-US","value":"The server is busy."}}}'
PARTS = (
    "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\nContent-Type: application/http\r\n\r\n"
    f"HTTP/1.1 204 No Content\r\nETag: {ETAG}\r\n\r\n\r\n--c--\r\n--b--\r\n"
)
MIXED = {"Content-Type": "multipart/mixed; boundary=b"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((503, {"Content-Type": "application/json"}, BUSY), Throttled),
        ((503, {}, b""), Disconnected),
        ((500, {}, b"<html>"), Disconnected),
    ],
)
def test_a_refusal_of_the_whole_request_has_its_meaning(service, answer, told):
    service.answer = answer
    with pytest.raises(HttpResponseError) as refused:
        batch.send(service.client, [Change((1, "a"), ABSENT, b"x")])
    assert isinstance(meaning(refused.value), told)


def test_an_answer_that_is_not_about_every_change_is_no_success(service):
    service.answer = 202, MIXED, PARTS.encode()
    assert batch.send(service.client, [Change((1, "a"), ABSENT, b"x")]) == [ETAG]
    with pytest.raises(ServiceResponseError):
        batch.send(service.client, [Change((1, key), ABSENT, b"x") for key in "ab"])


CUT = b"HTTP/1.1 202 Accepted\r\nDate: Thu, 19 Nov 2026 15:00:00 GMT\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    "headers",
    [b"Content-Length: 500\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1f4\r\n"],
    ids=["by length", "in chunks"],
)
@pytest.mark.parametrize("changes", [1, 2], ids=["alone", "together"])
def test_an_answer_that_is_cut_off_leaves_it_unknown_whether_the_write_was_done(monkeypatch, headers, changes):
    """The service had accepted it: the client reports that as an error without a status."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
        account = f"AccountName=devstoreaccount1;AccountKey={KEY};TableEndpoint={endpoint};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)

        def answer():
            link, _ = listening.accept()
            with link:
                link.recv(100_000)
                link.sendall(CUT + headers + b"--batchresponse_1")

        answering = threading.Thread(target=answer)
        answering.start()
        table = AzureTable(AzureTableUrl.of("azure-table:///ledger"), system_clock)
        (told,) = table.change_each([[Change((0, f"k{nth}"), ABSENT, b"x", 1) for nth in range(changes)]])
        answering.join()
        table.close()
    assert isinstance(told, Disconnected) and told.sent
