"""What real clients raise when a real connection on loopback fails, and what that says about the work."""

from __future__ import annotations

import errno
import itertools
import smtplib
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session
import httpx
import httpx2
import pytest
import redis.exceptions
import requests
import urllib3

from twiceproof import App, NeedsReview, Waiting
from twiceproof.claims.verdict import judge

Client = Callable[[str], object]

ANSWERS = {
    "chunks cut off": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
    "body cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "garbled": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "hung up": b"",
}


class Server:
    """Takes each request whole, gives one answer and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller:
                caller.recv(65536)
                caller.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    made: list[Server] = []

    def start(answer: bytes) -> str:
        made.append(Server(answer))
        return made[-1].url

    yield start
    for server in made:
        server.close()


@pytest.fixture
def refusing() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        yield f"http://127.0.0.1:{free.getsockname()[1]}/"


def by_requests(url: str) -> object:
    return requests.post(url, data=b"x", timeout=5).text


def by_requests_with_retries(url: str) -> object:
    retries = urllib3.Retry(1, status_forcelist=[503], allowed_methods=None, backoff_factor=0)
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        return session.post(url, data=b"x", timeout=5).text


def by_requests_over_a_proxy(url: str) -> object:
    return requests.post("http://shop.invalid/", data=b"x", timeout=5, proxies={"http": url}).text


def by_urllib(url: str) -> object:
    with urllib.request.urlopen(url, data=b"x", timeout=5) as answer:
        return answer.read()


def by_urllib3(url: str) -> object:
    return urllib3.PoolManager().request("POST", url, body=b"x", timeout=5).data


def by_httpx(url: str) -> object:
    return httpx.post(url, content=b"x", timeout=5).text


def by_httpx2(url: str) -> object:
    return httpx2.post(url, content=b"x", timeout=5).text


def by_botocore(url: str) -> object:
    session = botocore.session.Session()
    session.set_credentials("id", "secret")
    config = botocore.config.Config(retries={"max_attempts": 0})
    return session.create_client("dynamodb", "eu-west-1", endpoint_url=url, config=config).list_tables()


CLIENTS = [by_requests, by_requests_over_a_proxy, by_urllib, by_urllib3, by_httpx, by_httpx2, by_botocore]


def error_of(client: Client, url: str) -> Exception:
    with pytest.raises(Exception) as told:
        client(url)
    return told.value


# These clients take such an answer as it is.
TAKEN = {(by_urllib, "garbled"), (by_botocore, "garbled"), (by_botocore, "body cut off")}


@pytest.mark.parametrize(
    ("client", "answer"), [pair for pair in itertools.product(CLIENTS, ANSWERS) if pair not in TAKEN]
)
def test_an_answer_that_was_lost_on_the_way_leaves_a_doubt(
    client: Client, answer: str, serve: Callable[[bytes], str]
) -> None:
    assert judge(error_of(client, serve(ANSWERS[answer]))) == "ambiguous"


def test_an_answer_of_5xx_leaves_a_doubt_also_when_the_client_gave_up_asking(serve: Callable[[bytes], str]) -> None:
    url = serve(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    given_up = error_of(by_requests_with_retries, url)
    assert (type(given_up), judge(given_up)) == (requests.exceptions.RetryError, "ambiguous")
    assert judge(error_of(by_botocore, url)) == "ambiguous"


def test_what_aws_refuses_is_clean(serve: Callable[[bytes], str]) -> None:
    refused = error_of(by_botocore, serve(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
    assert (type(refused), judge(refused)) == (botocore.exceptions.ClientError, "clean")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_is_clean(client: Client, refusing: str) -> None:
    assert judge(error_of(client, refusing)) == "clean"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_name_that_is_not_resolved_is_clean(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert judge(error_of(client, "http://shop.invalid/")) == "clean"


def by_smtplib(url: str) -> object:
    return smtplib.SMTP(url.removeprefix("http://").removesuffix(":9/"), 9)


@pytest.mark.parametrize("client", [*CLIENTS, by_smtplib])
def test_a_network_that_cannot_be_reached_is_clean(client: Client) -> None:
    assert judge(error_of(client, "http://224.0.0.1:9/")) == "clean"  # nobody connects to a group of machines


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN])
def test_a_route_that_was_lost_after_the_request_was_sent_leaves_a_doubt(number: int) -> None:
    """What the kernel says about a connection that was made, once it gave up sending again."""
    assert judge(OSError(number, "No route to host")) == "ambiguous"


def test_a_certificate_that_requests_does_not_believe_is_clean() -> None:
    inner = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed"))
    given_up = error_of(lambda url: urllib3.Retry(0).increment("POST", url, error=inner), "/")
    assert judge(requests.exceptions.SSLError(given_up)) == "clean"


def test_a_redis_that_did_not_answer_in_time_leaves_a_doubt() -> None:
    assert judge(redis.exceptions.TimeoutError("Timeout reading from socket")) == "ambiguous"
    assert judge(redis.exceptions.ResponseError("WRONGTYPE")) == "other"


def test_an_error_of_ones_own_is_not_judged_by_what_is_in_it() -> None:
    assert judge(RuntimeError(ConnectionRefusedError())) == "other"


@pytest.mark.parametrize("answer", ["chunks cut off", "body cut off"])
def test_a_never_step_whose_answer_was_cut_off_is_for_a_person(
    app: App, serve: Callable[[bytes], str], answer: str
) -> None:
    @app.step(repeat="never")
    def post(url: str) -> object:
        return by_requests(url)

    @app.flow(key="k:{url}")
    def order(url: str) -> None:
        post(url)

    with pytest.raises(NeedsReview):
        order(serve(ANSWERS[answer]))


def test_a_never_step_that_was_refused_the_connection_is_tried_again_later(app: App, refusing: str) -> None:
    @app.step(repeat="never")
    def post(url: str) -> object:
        return by_requests(url)

    @app.flow(key="k:{url}")
    def order(url: str) -> None:
        post(url)

    with pytest.raises(Waiting):
        order(refusing)
