"""What real clients raise when a real connection on loopback fails, and what that says about the work."""

from __future__ import annotations

import asyncio
import errno
import itertools
import smtplib
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import azure.core
import azure.core.exceptions
import azure.core.rest
import botocore.config
import botocore.exceptions
import botocore.session
import httpx
import httpx2
import pytest
import redis.backoff
import redis.exceptions
import redis.retry
import requests
import stripe
import urllib3
from azure.core.pipeline.policies import RetryPolicy

from twiceproof import App, NeedsReview, Waiting
from twiceproof.claims.error_classification import classify

Client = Callable[[str], object]

ANSWERS = {
    "chunks cut off": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
    "body cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "garbled": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "hung up": b"",
}


class Server:
    """Takes each request whole, gives one answer and hangs up: these in turn, then the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
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
                caller.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def serve(serve_in_turn: Callable[..., str]) -> Callable[[bytes], str]:
    return serve_in_turn


@pytest.fixture
def serve_in_turn() -> Iterator[Callable[..., str]]:
    made: list[Server] = []

    def start(*answers: bytes) -> str:
        made.append(Server(*answers))
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
RETRYING = [by_urllib3, by_botocore]  # by default: a failure of theirs does not tell of an earlier try


def expected(client: Client) -> str:
    return "ambiguous" if client in RETRYING else "clean"


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
    assert classify(error_of(client, serve(ANSWERS[answer]))) == "ambiguous"


def test_an_answer_of_5xx_leaves_a_doubt_also_when_the_client_gave_up_asking(serve: Callable[[bytes], str]) -> None:
    url = serve(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    given_up = error_of(by_requests_with_retries, url)
    assert (type(given_up), classify(given_up)) == (requests.exceptions.RetryError, "ambiguous")
    assert classify(error_of(by_botocore, url)) == "ambiguous"


def test_what_aws_refuses_is_clean(serve: Callable[[bytes], str]) -> None:
    refused = error_of(by_botocore, serve(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
    assert (type(refused), classify(refused)) == (botocore.exceptions.ClientError, "clean")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_is_clean_unless_its_client_retries(client: Client, refusing: str) -> None:
    assert classify(error_of(client, refusing)) == expected(client)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_name_that_is_not_resolved_is_clean_unless_its_client_retries(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert classify(error_of(client, "http://shop.invalid/")) == expected(client)


def by_smtplib(url: str) -> object:
    return smtplib.SMTP(url.removeprefix("http://").removesuffix(":9/"), 9)


@pytest.mark.parametrize("client", [*CLIENTS, by_smtplib])
def test_a_network_that_cannot_be_reached_is_clean_unless_its_client_retries(client: Client) -> None:
    assert classify(error_of(client, "http://224.0.0.1:9/")) == expected(
        client
    )  # nobody connects to a group of machines


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN])
def test_a_route_that_was_lost_after_the_request_was_sent_leaves_a_doubt(number: int) -> None:
    """What the kernel says about a connection that was made, once it gave up sending again."""
    assert classify(OSError(number, "No route to host")) == "ambiguous"


def test_a_certificate_that_requests_does_not_believe_is_clean() -> None:
    inner = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed"))
    written: dict[str, Any] = {"__name__": "urllib3.connectionpool"}
    exec("def urlopen(fail): return fail()", written)
    given_up = error_of(
        lambda url: written["urlopen"](lambda: urllib3.Retry(0).increment("POST", url, error=inner)), "/"
    )
    assert classify(requests.exceptions.SSLError(given_up)) == "clean"


def test_a_redis_that_did_not_answer_in_time_leaves_a_doubt() -> None:
    assert classify(redis.exceptions.TimeoutError("Timeout reading from socket")) == "ambiguous"
    assert classify(redis.exceptions.ResponseError("WRONGTYPE")) == "other"


@pytest.mark.parametrize(
    ("client", "url"),
    [(by_requests, "shop.invalid"), (by_requests, "ftp://x/"), (by_httpx, "ftp://x/"), (by_httpx2, "ftp://x/")],
)
def test_what_a_client_refuses_to_send_is_clean(client: Client, url: str) -> None:
    assert classify(error_of(client, url)) == "clean"


def test_what_aws_cannot_even_sign_is_clean(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
    monkeypatch.setattr(session, "get_credentials", lambda: None)
    client = session.create_client("dynamodb", "eu-west-1", endpoint_url=refusing)
    assert classify(error_of(lambda url: client.list_tables(), refusing)) == "clean"
    assert classify(error_of(lambda url: client.get_item(Nothing=1), refusing)) == "clean"


def test_what_a_mail_server_cannot_take_is_clean() -> None:
    assert classify(smtplib.SMTPNotSupportedError("SMTPUTF8 not supported by server")) == "clean"


def by_aiohttp(url: str, wait: float) -> object:
    async def call() -> object:
        time = aiohttp.ClientTimeout(sock_connect=wait, sock_read=0.2)
        async with aiohttp.ClientSession(timeout=time) as session, session.post(url, data=b"x") as answer:
            return await answer.text()

    return asyncio.run(call())


def test_aiohttp_has_sent_nothing_if_connecting_timed_out_and_has_if_the_answer_did() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:  # takes no call, and one waits at its door
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        waited = error_of(lambda url: by_aiohttp(url, 5), url)
        others = [socket.socket() for _ in range(3)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(silent.getsockname())
        late = error_of(lambda url: by_aiohttp(url, 0.2), url)
        for other in others:
            other.close()
    assert (type(late), classify(late)) == (aiohttp.ConnectionTimeoutError, "clean")
    assert (type(waited), classify(waited)) == (aiohttp.SocketTimeoutError, "ambiguous")


class Cache:
    """A Redis that answers each line-up of commands with the next of its answers; without one, it hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller:
                while caller.recv(65536):
                    answer = self._answers.pop(0) if self._answers else b""
                    if not answer:
                        break
                    caller.sendall(answer)

    def error(self, retries: int = 0) -> Exception:
        client = redis.Redis(
            port=self.port,
            protocol=2,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), retries),
            driver_info=None,
            socket_timeout=5,
        )
        with client, pytest.raises(redis.RedisError) as told:
            client.set("paid", 1)
        self._socket.close()
        return told.value


@pytest.mark.parametrize(
    "answer", [b"-LOADING Redis is loading the dataset in memory", b"-NOAUTH Authentication required."]
)
def test_a_redis_that_refuses_has_done_nothing_if_its_client_does_not_retry(answer: bytes) -> None:
    error = Cache(answer + b"\r\n").error()
    assert classify(error, retries_itself=False) == "clean"
    assert classify(error) == "ambiguous"  # by default it retries


def test_a_redis_that_refuses_the_second_try_may_have_done_the_first() -> None:
    error = Cache(b"", b"-LOADING Redis is loading the dataset in memory\r\n").error(retries=1)
    assert (type(error), classify(error)) == (redis.exceptions.BusyLoadingError, "ambiguous")


def test_a_redis_that_hung_up_may_have_done_it() -> None:
    assert classify(Cache().error()) == "ambiguous"


def answer_of(status: int, error: str = "{}") -> bytes:
    body = f'{{"error": {error}}}'.encode()
    head = f"HTTP/1.1 {status} Told\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def by_stripe(url: str) -> object:
    client = stripe.StripeClient("sk_test_none", base_addresses={"api": url.rstrip("/")}, max_network_retries=0)
    return client.v1.charges.create(params={"amount": 100, "currency": "eur"})


@pytest.mark.parametrize(
    ("answer", "kind", "verdict"),
    [
        (answer_of(400, '{"type": "invalid_request_error"}'), "InvalidRequestError", "clean"),
        (answer_of(402, '{"type": "card_error", "code": "card_declined"}'), "CardError", "clean"),
        (answer_of(400, '{"type": "idempotency_error"}'), "IdempotencyError", "ambiguous"),
        (answer_of(429), "RateLimitError", "clean"),
        (answer_of(409), "APIError", "ambiguous"),
        (answer_of(500), "APIError", "ambiguous"),
        (b"", "APIConnectionError", "ambiguous"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_stripes_client_raises_is_known(
    serve: Callable[[bytes], str], answer: bytes, kind: str, verdict: str
) -> None:
    error = error_of(by_stripe, serve(answer))
    assert (type(error).__name__, classify(error)) == (kind, verdict)


def test_a_card_error_of_anybody_elses_is_judged_by_its_status() -> None:
    kind = type("CardError", (Exception,), {"__module__": "my.shop", "http_status": 402})
    assert classify(kind("declined")) == "ambiguous"


def by_azure(url: str, retries: int = 0) -> object:
    client = azure.core.PipelineClient(url, policies=[RetryPolicy(retry_backoff_factor=0, retry_total=retries)])
    answer = client.send_request(azure.core.rest.HttpRequest("POST", url, content=b"x"))
    return answer.raise_for_status()


@pytest.mark.parametrize(("status", "verdict"), [(404, "clean"), (409, "ambiguous"), (500, "ambiguous")])
def test_the_status_that_an_azure_client_raises_is_known_where_it_does_not_retry(
    serve: Callable[[bytes], str], status: int, verdict: str
) -> None:
    error = error_of(by_azure, serve(answer_of(status)))
    assert classify(error, retries_itself=False) == verdict
    assert classify(error) == "ambiguous"  # by default its pipeline retries


def test_a_connection_that_azure_could_not_make_is_clean_where_it_does_not_retry(
    refusing: str, serve: Callable[[bytes], str]
) -> None:
    refused, broken = error_of(by_azure, refusing), error_of(by_azure, serve(b""))
    assert classify(refused, retries_itself=False) == "clean"
    assert (classify(refused), classify(broken, retries_itself=False)) == ("ambiguous", "ambiguous")


def test_a_refusal_does_not_say_what_azures_pipeline_tried_before(serve_in_turn: Callable[..., str]) -> None:
    url = serve_in_turn(answer_of(500), answer_of(404))
    assert classify(error_of(lambda url: by_azure(url, retries=1), url)) == "ambiguous"


def test_an_error_of_ones_own_is_not_judged_by_what_is_in_it() -> None:
    assert classify(RuntimeError(ConnectionRefusedError())) == "other"


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
