"""Objects put once: on moto's server over real HTTP, and on one that ignores the condition."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.servers.moto import moto_server
from twiceproof import Happened, Misuse, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects import s3
from twiceproof.effects.base import outgoing_headers
from twiceproof.effects.repeat import NEVER

KEY, OTHER = "tp_" + "a1" * 16, "tp_" + "b2" * 16


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as found:
        yield found


@pytest.fixture
def where(endpoint: str, request: pytest.FixtureRequest) -> s3.S3Bucket:
    import boto3

    name = f"bucket-{abs(hash(request.node.name))}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=name)
    return s3.bucket(name, endpoint=endpoint, region="us-east-1")


class CarelessS3:
    """A bad S3 service of ours: it ignores If-None-Match. `answers` are given before it does anything."""

    def __init__(self) -> None:
        self.puts: list[str] = []
        self.objects: dict[str, dict[str, str]] = {}
        self.answers: list[tuple[int, bytes]] = []
        careless = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                careless.puts.append(self.path)
                if careless.answers:
                    self._say(*careless.answers.pop(0))
                    return
                meta = {name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta")}
                careless.objects[self.path] = meta
                self._say(200, b"", ETag='"1"')

            def do_HEAD(self) -> None:
                found = careless.objects.get(self.path)
                self._say(404 if found is None else 200, b"", ETag='"1"', **(found or {}))

            def _say(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[CarelessS3]:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server = CarelessS3()
    yield server
    server.close()


def test_an_object_of_an_earlier_attempt_is_ours(where: s3.S3Bucket) -> None:
    effect = s3.put(where, "invoices/17", "9.90", content_type="text/plain")
    first = effect.perform(KEY)
    assert effect.perform(KEY) == first == s3.StoredObject(where.name, "invoices/17", first.etag, 4)
    assert effect.look(KEY) == Happened(first)


def test_another_ones_object_is_refused_for_good_and_kept(where: s3.S3Bucket) -> None:
    s3.put(where, "invoices/17", "theirs").perform(OTHER)
    effect = s3.put(where, "invoices/17", "ours")
    with pytest.raises(NotDone, match="another's object") as caught:
        effect.perform(KEY)
    assert caught.value.data["final"] is True
    assert isinstance(effect.look(KEY), Unknown)
    assert isinstance(s3.put(where, "invoices/17", "theirs").look(OTHER), Happened)


def test_of_sixteen_puts_with_keys_of_their_own_one_wins(where: s3.S3Bucket) -> None:
    effect = s3.put(where, "ticket", "x")

    def attempt(number: int) -> bool:
        try:
            effect.perform(f"tp_{number:032x}")
        except NotDone:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


def test_the_correlation_id_and_the_effect_key_are_with_the_object(where: s3.S3Bucket, endpoint: str) -> None:
    import boto3

    token = outgoing_headers.set({"correlation-id": "order-17"})
    try:
        s3.put(where, "invoices/17", b"x").perform(KEY)
    finally:
        outgoing_headers.reset(token)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    found = client.head_object(Bucket=where.name, Key="invoices/17")["Metadata"]
    assert found == {"effect-key": KEY, "correlation-id": "order-17"}


def test_the_service_remembers_for_ever_and_is_asked_once(where: s3.S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[str] = []
    real = s3.ObjectPut._probe
    monkeypatch.setattr(s3.ObjectPut, "_probe", lambda self: probes.append(self.key) or real(self))
    for number in range(3):
        effect = s3.put(where, f"o/{number}", b"x")
        effect.perform(KEY)
    assert probes == ["o/0"]
    assert (effect.repeat.kind, effect.repeat.window > 10**9, effect.repeat.settling) == ("keyed", True, 65.0)


def test_amazon_is_believed_and_another_service_is_asked() -> None:
    assert s3.bucket("shop").conditional is True
    assert s3.bucket("shop", endpoint="http://127.0.0.1:9").conditional is None


def test_a_service_that_ignores_the_condition_is_found_out_before_a_write(careless: CarelessS3) -> None:
    effect = s3.put(s3.bucket("shop", endpoint=careless.url, region="us-east-1"), "invoices/17", b"x")
    assert effect.repeat.kind == "keyed"
    with pytest.raises(NotDone, match="ignores If-None-Match") as caught:
        effect.perform(KEY)
    assert caught.value.data["final"] is True
    assert set(careless.puts) == {"/shop/.twiceproof-probe"}
    assert effect.repeat == NEVER


def test_where_the_condition_is_said_to_be_ignored_nothing_seen_is_overwritten(careless: CarelessS3) -> None:
    where = s3.bucket("shop", endpoint=careless.url, region="us-east-1", conditional=False)
    effect = s3.put(where, "invoices/17", b"x")
    assert effect.repeat == NEVER
    assert effect.perform(KEY) is not None and effect.perform(KEY) is not None
    assert careless.puts == ["/shop/invoices/17"]
    with pytest.raises(NotDone, match="another's object"):
        effect.perform(OTHER)


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>-</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "raised", "final"),
    [
        (409, "ConditionalRequestConflict", NotDone, False),
        (403, "AccessDenied", NotDone, True),
        (429, "TooManyRequests", NotDone, False),
        (408, "RequestTimeout", OutcomeUnknown, False),
        (499, "499", OutcomeUnknown, False),  # a proxy's: the service may have acted
        (500, "InternalError", OutcomeUnknown, False),
        (503, "SlowDown", OutcomeUnknown, False),
    ],
)
def test_each_refusal_is_judged(
    careless: CarelessS3, status: int, code: str, raised: type[Exception], final: bool
) -> None:
    where = s3.bucket("shop", endpoint=careless.url, region="us-east-1", conditional=True)
    careless.answers.append((status, _error(code)))
    with pytest.raises(raised) as caught:
        s3.put(where, "invoices/17", b"x").perform(KEY)
    assert caught.value.data.get("final", False) is final  # type: ignore[attr-defined]
    assert len(careless.puts) == 1  # no retry of the client's own


def test_names_that_no_object_has_are_refused() -> None:
    for name in ("", "x" * 1_025, s3.PROBE):
        with pytest.raises(Misuse):
            s3.put("shop", name, b"x")


def test_a_forked_child_makes_a_client_of_its_own(careless: CarelessS3) -> None:
    bucket = s3.bucket("b", endpoint=careless.url, region="us-east-1", conditional=False)
    parents = s3._client(bucket)
    with s3._probing:
        child = os.fork()
        if not child:
            os._exit(0 if s3._client(bucket) is not parents and not s3._probing.locked() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert s3._client(bucket) is parents
