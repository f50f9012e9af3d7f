"""What an error says about the work: surely not done, perhaps done, or a fault of the program."""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import BadStatusLine, IncompleteRead, RemoteDisconnected
from typing import Any

import pytest

from twiceproof import App, NeedsReview, NotDone
from twiceproof.claims.error_classification import classify


class Answer:
    def __init__(self, status_code: Any) -> None:
        self.status_code = status_code


class WithResponse(Exception):  # httpx, requests
    def __init__(self, status: Any) -> None:
        self.response = Answer(status)


class WithStatus(Exception):  # aiohttp
    def __init__(self, status: Any) -> None:
        self.status = status


def urllib_error(status: Any) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "", None, None)  # type: ignore[arg-type]


class WithHttpStatus(Exception):  # stripe
    def __init__(self, status: Any) -> None:
        self.http_status, self.code = status, "card_declined"


class WithMetadata(Exception):  # botocore
    def __init__(self, status: Any) -> None:
        self.response = {"Error": {"Code": "Unwell"}, "ResponseMetadata": {"HTTPStatusCode": status}}


CARRIERS = [WithResponse, WithStatus, urllib_error, WithHttpStatus, WithMetadata]


# What a server sends instead of acting. Any other status may come after the work was done, or from a proxy.
REFUSED = [
    *(400, 401, 403, 404, 405, 406, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 423, 426, 428, 429, 431, 451),
    HTTPStatus.NOT_FOUND,
]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_by_status_is_clean(carrier: Any, status: int) -> None:
    assert classify(carrier(status)) == "clean"


@pytest.mark.parametrize("carrier", CARRIERS)
def test_any_other_status_of_an_error_is_ambiguous(carrier: Any) -> None:
    others = [*(status for status in range(400, 600) if status not in REFUSED), HTTPStatus.BAD_GATEWAY]
    assert [status for status in others if classify(carrier(status)) != "ambiguous"] == []


def test_a_never_step_is_not_repeated_after_a_proxy_said_that_its_client_had_gone(app: App) -> None:
    """nginx's 499: the request went on to the server behind it."""
    charged: list[int] = []

    @app.step(repeat="never")
    def charge(order: int) -> None:
        charged.append(order)
        raise WithStatus(499)

    @app.flow(key="order:{order}")
    def pay(order: int) -> None:
        charge(order)

    with pytest.raises(NeedsReview):
        pay(1)
    with pytest.raises(NeedsReview):
        pay(1)
    assert charged == [1]


@pytest.mark.parametrize("error", [smtplib.SMTPServerDisconnected("gone"), IncompleteRead(b""), BadStatusLine("")])
def test_a_server_that_hung_up_in_the_middle_leaves_a_doubt(error: Exception) -> None:
    assert classify(error) == "ambiguous"


@pytest.mark.parametrize(
    "error",
    [smtplib.SMTPRecipientsRefused({}), smtplib.SMTPDataError(554, b"spam"), smtplib.SMTPSenderRefused(550, b"", "a")],
)
def test_a_mail_server_that_said_no_has_sent_nothing(error: Exception) -> None:
    assert classify(error) == "clean"


@pytest.mark.parametrize("status", [200, 302, 99, 600, None, "404", True, 404.0])
def test_what_is_no_error_status_says_nothing(status: Any) -> None:
    assert classify(WithResponse(status)) == "other"


@pytest.mark.parametrize(
    "error", [NotDone("no"), ConnectionRefusedError(), socket.gaierror(), type("Refused", (NotDone,), {})("x")]
)
def test_what_never_left_is_clean(error: Exception) -> None:
    assert classify(error) == "clean"


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        TimeoutError(),
        TimeoutError(),
        ConnectionResetError(),
        ConnectionAbortedError(),
        BrokenPipeError(),
        RemoteDisconnected(),
        KeyboardInterrupt(),
        SystemExit(0),
        asyncio.CancelledError(),
        GeneratorExit(),
        subprocess.TimeoutExpired("curl", 5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_have_arrived_is_ambiguous(error: BaseException) -> None:
    assert classify(error) == "ambiguous"


def answer_of(port: int) -> Exception:
    with pytest.raises(urllib.error.URLError) as told:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
    return told.value


def test_what_urllib_could_not_even_connect_to_is_clean() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        assert classify(answer_of(free.getsockname()[1])) == "clean"


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (ConnectionRefusedError(), "clean"),
        (socket.gaierror(), "clean"),
        (ssl.SSLCertVerificationError(), "clean"),
        (TimeoutError(), "ambiguous"),
        (ConnectionResetError(), "ambiguous"),
        (ssl.SSLEOFError(), "ambiguous"),
        (ValueError(), "other"),
        ("no host given", "other"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_urllib_wraps_says_what_it_means(reason: Any, verdict: str) -> None:
    assert classify(urllib.error.URLError(reason)) == verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ssl.SSLEOFError(), "ambiguous"),
        (ssl.SSLZeroReturnError(), "ambiguous"),
        (ssl.SSLCertVerificationError(), "clean"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_safe_connection_that_broke_leaves_a_doubt_and_one_never_made_none(error: Exception, verdict: str) -> None:
    assert classify(error) == verdict


@pytest.mark.parametrize("error", [ValueError(), KeyError(), AssertionError(), OSError(), RuntimeError(), Exception()])
def test_everything_else_says_nothing_about_the_work(error: Exception) -> None:
    assert classify(error) == "other"


def client_error(*names: str) -> Exception:
    """An HTTP client's error, by the names of its classes from the root down: they share no base with Python's own."""
    kind: type[Exception] = Exception
    for name in names:
        kind = type(name, (kind,), {})
    return kind("x")


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        (("HTTPError", "RequestError", "TransportError", "TimeoutException", "ReadTimeout"), "ambiguous"),  # httpx
        (("HTTPError", "RequestError", "TransportError", "NetworkError", "ReadError"), "ambiguous"),
        (("HTTPError", "RequestError", "TransportError", "ProtocolError", "RemoteProtocolError"), "ambiguous"),
        (("HTTPError", "RequestError", "TransportError", "NetworkError", "ConnectError"), "clean"),
        (("HTTPError", "RequestError", "TransportError", "TimeoutException", "ConnectTimeout"), "clean"),
        (("HTTPError", "RequestError", "TransportError", "TimeoutException", "PoolTimeout"), "clean"),
        (("HTTPError", "RequestError", "DecodingError"), "other"),
        (("RequestException", "Timeout", "ReadTimeout"), "ambiguous"),  # requests
        (("RequestException", "ConnectionError"), "ambiguous"),
        (("RequestException", "InvalidURL"), "other"),
        (("HTTPError", "PoolError", "RequestError", "ReadTimeoutError"), "ambiguous"),  # urllib3
        (("HTTPError", "ProtocolError"), "ambiguous"),
        (("HTTPError", "TimeoutError", "ConnectTimeoutError", "NewConnectionError"), "clean"),
        (("HTTPError", "LocationParseError"), "other"),
        (("RedisError", "TimeoutError"), "ambiguous"),
        (("BotoCoreError", "HTTPClientError", "ConnectionClosedError"), "ambiguous"),
        (("StripeError", "APIConnectionError"), "ambiguous"),
        (("AzureError", "ServiceResponseError"), "ambiguous"),
        (("ClientError", "ClientConnectionError", "ServerDisconnectedError"), "ambiguous"),  # aiohttp
        (("ClientError", "ClientConnectionError", "ClientOSError", "ClientConnectorError"), "clean"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_http_clients_own_errors_are_known_by_name(names: tuple[str, ...], verdict: str) -> None:
    assert classify(client_error(*names)) == verdict


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([ValueError(), TimeoutError()], "ambiguous"),
        ([NotDone("a"), NotDone("b")], "clean"),
        ([NotDone("a"), ValueError()], "other"),
        ([NotDone("a"), NotDone("b", final=True)], "final"),
        ([NotDone("b", final=True), ValueError()], "other"),
        ([NotDone("a"), ExceptionGroup("inner", [ConnectionResetError()])], "ambiguous"),
    ],
)
def test_of_several_errors_the_doubt_counts(errors: list[Exception], verdict: str) -> None:
    assert classify(ExceptionGroup("several", errors)) == verdict


@pytest.mark.parametrize(("status", "runs"), [(422, 2), (503, 1)])
def test_a_status_decides_whether_the_next_call_runs(app: App, style: Any, status: int, runs: int) -> None:
    done: list[int] = []

    def pay(order: int) -> int:
        done.append(order)
        if len(done) == 1:
            raise WithResponse(status)
        return len(done)

    guarded = style.once(app, pay)
    with pytest.raises(WithResponse if runs == 2 else NeedsReview):
        guarded(1)
    if runs == 1:
        with pytest.raises(NeedsReview):
            guarded(1)
    else:
        assert guarded(1) == 2
    assert len(done) == runs


def test_a_task_group_that_timed_out_is_not_released(app: App) -> None:
    @app.once(key="order:{order}", on_failure="release")
    async def pay(order: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow())

    async def slow() -> None:
        raise TimeoutError

    async def scene() -> None:
        for _ in range(2):
            with pytest.raises(NeedsReview):
                await pay(1)

    asyncio.run(scene())


def test_an_error_that_says_nothing_about_the_work_waits_for_a_person(app: App) -> None:
    @app.once(key="order:{order}")
    def pay(order: int) -> None:
        raise OSError("disk")

    for _ in range(2):
        with pytest.raises(NeedsReview):
            pay(1)


class Unspeakable(Exception):
    """Of a library that loads what it says when it is asked for it, and cannot."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("not loaded")


def test_an_error_that_cannot_be_looked_at_is_judged_like_one_that_says_nothing() -> None:
    assert classify(Unspeakable()) == classify(ValueError()) == "other"


def test_an_error_that_cannot_be_looked_at_is_the_cause_of_what_is_raised(app: App) -> None:
    @app.once(key="{n}")
    def pay(n: int) -> None:
        raise Unspeakable

    with pytest.raises(NeedsReview) as told:
        pay(1)
    assert isinstance(told.value.__cause__, Unspeakable)
