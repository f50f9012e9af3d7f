"""What real clients had sent before their error came, over loopback: a redirect that was followed, a second try."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import botocore.config
import botocore.session
import httpx
import httpx2
import pytest
import requests
import requests.auth
import urllib3

from twiceproof import App, Misuse, NeedsReview, NotDone
from twiceproof.claims.error_classification import ErrorRegistry, classify, earlier_requests

Client = Callable[[str], object]


class Shop(http.server.ThreadingHTTPServer):
    """Answers each request with the next line of its script, and the last one for ever; counts what it was asked."""

    daemon_threads = True

    def __init__(self, *script: tuple[int, dict[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Desk)
        self.script = list(script)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/pay"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def next_answer(self, asked: str) -> tuple[int, dict[str, str]]:
        self.asked.append(asked)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class Desk(http.server.BaseHTTPRequestHandler):
    server: Shop
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers = self.server.next_answer(f"{self.command} {self.path}")
        self.close_connection = True
        if not status:  # carried out, and hung up
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names of the standard library's

    def log_message(self, *_: Any) -> None:
        """Not on stderr."""


DIED: tuple[int, dict[str, str]] = (0, {})
NO: tuple[int, dict[str, str]] = (404, {})


def see_other(url: str) -> tuple[int, dict[str, str]]:
    return 303, {"Location": url}


@pytest.fixture
def shop() -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def start(*script: tuple[int, dict[str, str]]) -> Shop:
        made.append(Shop(*script))
        return made[-1]

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.fixture
def refusing() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        yield f"http://127.0.0.1:{free.getsockname()[1]}/"


def by_requests(url: str) -> None:
    requests.post(url, data=b"x", timeout=5).raise_for_status()


def by_urllib(url: str) -> object:
    try:
        with urllib.request.urlopen(url, data=b"x", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_httpx(url: str) -> object:
    return httpx.post(url, content=b"x", timeout=5, follow_redirects=True).raise_for_status()


def by_httpx2(url: str) -> object:
    return httpx2.post(url, content=b"x", timeout=5, follow_redirects=True).raise_for_status()


def by_httpx_awaiting(url: str) -> object:
    async def post() -> object:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            return (await client.post(url, content=b"x")).raise_for_status()

    return asyncio.run(post())


def by_aiohttp(url: str) -> object:
    async def post() -> object:
        async with aiohttp.ClientSession() as session, session.post(url, data=b"x", raise_for_status=True) as answer:
            return answer.status

    return asyncio.run(post())


def by_urllib3(url: str) -> object:
    with urllib3.PoolManager() as manager:
        return manager.request("POST", url, body=b"x", timeout=5).status


CLIENTS = [by_requests, by_urllib, by_httpx, by_httpx2, by_httpx_awaiting, by_aiohttp]
TELLING = [
    by_requests,
    by_urllib,
    by_urllib3,
]  # whose errors show that a redirect was followed, whatever they are about
SILENT = [by_httpx, by_httpx2, by_httpx_awaiting, by_aiohttp]  # whose connection errors do not


def error_of(client: Client, url: str) -> Exception:
    with pytest.raises(Exception) as told:
        client(url)
    return told.value


@pytest.mark.parametrize(
    ("client", "earlier"),
    [(by_requests, 303), (by_urllib, None), (by_httpx, 303), (by_httpx2, 303), (by_httpx_awaiting, 303)],
)
def test_a_refusal_behind_a_redirect_leaves_a_doubt_about_what_came_before_it(
    client: Client, earlier: int | None, shop: Callable[..., Shop]
) -> None:
    one = shop(see_other("/receipt"), NO)
    error = error_of(client, one.url)
    assert one.asked == ["POST /pay", "GET /receipt"]
    assert (earlier_requests(error), classify(error)) == ([earlier], "ambiguous")


def test_a_refusal_that_aiohttp_raises_by_itself_does_not_tell_of_a_redirect(shop: Callable[..., Shop]) -> None:
    """With `raise_for_status=True` its error has no history. `response.raise_for_status()` has one."""
    one = shop(see_other("/receipt"), NO)
    error = error_of(by_aiohttp, one.url)
    assert (earlier_requests(error), classify(error)) == ([], "clean")
    assert classify(error, retries_itself=True) == "ambiguous"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refusal_at_once_is_clean(client: Client, shop: Callable[..., Shop]) -> None:
    error = error_of(client, shop(NO).url)
    assert (earlier_requests(error), classify(error)) == ([], "clean")


@pytest.mark.parametrize("client", TELLING)
def test_a_refused_connection_behind_a_redirect_leaves_a_doubt(
    client: Client, shop: Callable[..., Shop], refusing: str
) -> None:
    one = shop(see_other(refusing))
    error = error_of(client, one.url)
    assert (one.asked, classify(error)) == (["POST /pay"], "ambiguous")


@pytest.mark.parametrize("client", SILENT)
def test_a_connection_error_that_hides_a_redirect_is_ambiguous_by_declaration(
    client: Client, shop: Callable[..., Shop], refusing: str
) -> None:
    error = error_of(client, shop(see_other(refusing)).url)
    assert classify(error) == "clean"
    registry = ErrorRegistry()
    registry.add_retrying(Exception, True)
    assert registry.judge(error) == "ambiguous"
    assert registry.judge(NotDone("declined")) == "clean"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_at_once_is_clean(client: Client, refusing: str) -> None:
    assert classify(error_of(client, refusing)) == "clean"


@pytest.mark.parametrize("client", CLIENTS)
def test_redirects_that_never_end_leave_a_doubt(client: Client, shop: Callable[..., Shop]) -> None:
    assert classify(error_of(client, shop(see_other("/again")).url)) == "ambiguous"


@pytest.mark.parametrize("client", [by_requests, by_aiohttp])
def test_a_redirect_to_nowhere_leaves_a_doubt(client: Client, shop: Callable[..., Shop]) -> None:
    assert classify(error_of(client, shop(see_other("http://[bad")).url)) == "ambiguous"


# -- tries -------------------------------------------------------------------------------------------


def put_by_urllib3(url: str) -> object:
    with urllib3.PoolManager() as manager:
        return manager.request("PUT", url, body=b"x", timeout=5, retries=1).status


def retrying(url: str) -> None:
    retries = urllib3.Retry(2, status_forcelist=[429, 502], allowed_methods=None, backoff_factor=0)
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.post(url, data=b"x", timeout=5).raise_for_status()


class Dying:
    """Does what it is asked, hangs up, and is gone."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.asked: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        caller, _ = self._socket.accept()
        self._socket.close()
        with caller:
            self.asked.append(caller.recv(65536))


@pytest.mark.parametrize("client", [put_by_urllib3, retrying])
def test_a_second_try_that_was_refused_leaves_a_doubt_about_the_first(client: Client) -> None:
    dying = Dying()
    error = error_of(client, dying.url)
    assert (len(dying.asked), classify(error)) == (1, "ambiguous")


class Closing(Dying):
    """Answers once, and keeps the connection; what it is asked next on it, it does, and is gone."""

    def _serve(self) -> None:
        caller, _ = self._socket.accept()
        self._socket.close()
        with caller:
            self.asked.append(caller.recv(65536))
            caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            self.asked.append(caller.recv(65536))


@pytest.mark.parametrize(("method", "last"), [("PUT", "ClientConnectorError"), ("POST", "ServerDisconnectedError")])
def test_what_aiohttp_sends_once_more_is_ambiguous_by_declaration(method: str, last: str) -> None:
    """On a connection that it has used before, it sends a PUT once more by itself; its error does not say so."""
    closing = Closing()

    async def send() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.request(method, closing.url, data=b"x"):
                    pass

    error = error_of(lambda _: asyncio.run(send()), closing.url)
    assert (len(closing.asked), type(error).__name__) == (2, last)
    assert classify(error) == ("clean" if method == "PUT" else "ambiguous")
    assert classify(error, retries_itself=True) == "ambiguous"


@pytest.mark.parametrize("client", [put_by_urllib3, retrying])
def test_tries_all_refused_leave_a_doubt_unless_the_client_does_not_retry(client: Client, refusing: str) -> None:
    """How each of them ended is known to urllib3 alone."""
    assert classify(error_of(client, refusing)) == "ambiguous"


@pytest.mark.parametrize(("first", "verdict"), [(502, "ambiguous"), (429, "clean")])
def test_a_refusal_at_the_second_try_says_nothing_about_the_first(
    first: int, verdict: str, shop: Callable[..., Shop]
) -> None:
    one = shop((first, {}), NO)
    error = error_of(retrying, one.url)
    assert (len(one.asked), classify(error)) == (2, verdict)


def test_tries_of_which_nothing_is_known_leave_a_doubt() -> None:
    """As one comes out of another process: the error is copied, and where it came from is not."""
    refused = urllib3.exceptions.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    assert classify(refused) == "clean"
    assert classify(urllib3.exceptions.MaxRetryError(None, "/", refused)) == "ambiguous"  # type: ignore[arg-type]


def test_the_variables_of_a_clients_functions_are_not_read(refusing: str) -> None:
    error = error_of(by_requests, refusing)
    traceback.clear_frames(error.__traceback__)
    assert classify(error) == "clean"


def by_botocore(url: str, retries: int) -> object:
    session = botocore.session.Session()
    session.set_credentials("id", "secret")
    config = botocore.config.Config(retries={"max_attempts": retries})
    return session.create_client("dynamodb", "eu-west-1", endpoint_url=url, config=config).list_tables()


@pytest.mark.parametrize(("retries", "verdict"), [(0, "clean"), (1, "ambiguous")])
def test_aws_is_asked_again_by_its_client_and_a_refusal_then_leaves_a_doubt(
    retries: int, verdict: str, shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *_, **__: 0.0)
    one = shop(*[DIED] * retries, (400, {}))
    error = error_of(lambda url: by_botocore(url, retries), one.url)
    assert (len(one.asked), classify(error)) == (retries + 1, verdict)


def test_an_aws_client_that_could_not_connect_hides_whether_it_was_its_first_try(refusing: str) -> None:
    error = error_of(lambda url: by_botocore(url, 0), refusing)
    assert classify(error) == "ambiguous"
    assert classify(error, retries_itself=False) == "clean"


# -- what is no earlier request ----------------------------------------------------------------------


CHALLENGE = (401, {"WWW-Authenticate": 'Digest realm="r", nonce="n", algorithm=MD5, qop="auth"'})


def with_requests_digest(url: str) -> None:
    auth = requests.auth.HTTPDigestAuth("ann", "secret")
    requests.post(url, data=b"x", auth=auth, timeout=5).raise_for_status()


def with_httpx_digest(url: str) -> object:
    return httpx.post(url, content=b"x", auth=httpx.DigestAuth("ann", "secret"), timeout=5).raise_for_status()


@pytest.mark.parametrize("client", [with_requests_digest, with_httpx_digest])
def test_a_request_that_was_first_asked_who_it_is_was_not_carried_out_then(
    client: Client, shop: Callable[..., Shop]
) -> None:
    one = shop(CHALLENGE, (422, {}))
    error = error_of(client, one.url)
    assert (len(one.asked), earlier_requests(error), classify(error)) == (2, [401], "clean")


class Answered(Exception):  # aiohttp
    def __init__(self, status: int, *history: Any) -> None:
        self.status = status
        self.history = history


class Answer:
    def __init__(self, status: int) -> None:
        self.status = status


def test_what_an_error_carries_as_its_history_counts_if_it_is_answers() -> None:
    assert classify(Answered(404, Answer(303))) == "ambiguous"
    assert classify(Answered(404, "GET /", object())) == "clean"
    assert classify(Answered(404)) == "clean"


def test_the_programs_own_word_goes_before_what_was_sent(shop: Callable[..., Shop]) -> None:
    def pay(url: str) -> None:
        try:
            by_requests(url)
        except requests.HTTPError as error:
            raise NotDone("the receipt's page says that it was declined") from error

    assert classify(error_of(pay, shop(see_other("/receipt"), NO).url)) == "clean"


# -- what it is for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "behind"),
    [
        *((client, "a page that is not there") for client in (by_requests, by_urllib, by_httpx, by_httpx2)),
        *((client, "nobody") for client in (by_requests, by_urllib)),
    ],
)
def test_a_charge_that_was_answered_with_a_redirect_is_not_made_again(
    client: Client, behind: str, memory: App, shop: Callable[..., Shop], refusing: str
) -> None:
    one = shop(see_other("/receipt" if behind != "nobody" else refusing), NO)

    @memory.once(key="order:{order}")
    def charge(order: int) -> None:
        client(one.url)

    for _ in range(2):
        with pytest.raises(NeedsReview):
            charge(1)
    assert one.asked.count("POST /pay") == 1


@pytest.mark.parametrize("client", [by_requests, by_urllib, by_httpx, by_httpx2])
def test_a_charge_that_was_refused_is_made_at_the_next_call(
    client: Client, memory: App, shop: Callable[..., Shop]
) -> None:
    one = shop(NO, (200, {}))

    @memory.once(key="order:{order}")
    def charge(order: int) -> None:
        client(one.url)

    with pytest.raises((OSError, httpx.HTTPError, httpx2.HTTPError)):
        charge(1)
    charge(1)
    assert one.asked.count("POST /pay") == 2


def charging(app: App, client: Client, url: str) -> Callable[[int], None]:
    """A flow of one step that must never be repeated blindly."""

    @app.step(repeat="never")
    def charge(order: int) -> None:
        client(url)

    @app.flow(key="order:{order}")
    def sell(order: int) -> None:
        charge(order)

    return sell


@pytest.mark.parametrize("client", [by_requests, by_urllib, by_httpx, by_httpx2])
def test_a_never_step_that_was_redirected_is_for_a_person(
    client: Client, memory: App, shop: Callable[..., Shop]
) -> None:
    one = shop(see_other("/receipt"), NO)
    with pytest.raises(NeedsReview):
        charging(memory, client, one.url)(1)
    assert one.asked.count("POST /pay") == 1


@pytest.mark.parametrize("client", [by_requests, by_urllib, by_httpx, by_httpx2])
def test_a_never_step_that_was_refused_is_tried_again(client: Client, memory: App, shop: Callable[..., Shop]) -> None:
    one = shop(NO, (200, {}))
    charging(memory, client, one.url)(1)
    assert one.asked.count("POST /pay") == 2


def test_a_client_that_is_declared_to_retry_is_not_believed_about_its_last_request(memory: App, refusing: str) -> None:
    memory.classify(httpx.TransportError, retries_itself=True)

    @memory.once(key="order:{order}")
    def charge(order: int) -> None:
        by_httpx(refusing)

    with pytest.raises(NeedsReview):
        charge(1)


def test_what_is_declared_of_an_error_is_a_verdict_or_whether_its_client_retries(memory: App) -> None:
    with pytest.raises(Misuse, match="retries_itself=True"):
        memory.classify(httpx.TransportError)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match="retries_itself=True"):
        memory.classify(retries_itself=True)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match="not an exception class"):
        memory.classify("httpx", retries_itself=True)  # type: ignore[call-overload]
