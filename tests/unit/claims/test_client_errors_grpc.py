"""What a real gRPC client raises about a real server on loopback, and what that says about the work."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twiceproof import App, NeedsReview
from twiceproof.claims.error_classification import classify

grpc: Any = pytest.importorskip("grpc", reason="grpcio is not installed: pip install -e '.[test-integrations]'")
with warnings.catch_warnings():  # it warns of each Python that will be too old one day
    warnings.simplefilter("ignore")
    google: Any = pytest.importorskip("google.api_core.exceptions", reason="google-api-core is not installed")
    from google.api_core.grpc_helpers import wrap_errors
    from google.api_core.retry import Retry as GoogleRetry

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")

CLEAN = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
}
AMBIGUOUS = {
    "CANCELLED",
    "UNKNOWN",
    "DEADLINE_EXCEEDED",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
}


class Bank(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with the next status of its script, the last one for ever; OK with as many bytes as were asked for."""

    def __init__(self) -> None:
        self.script: list[str] = []
        self.asked: list[bytes] = []

    def service(self, call: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._pay) if call.method == "/Bank/Pay" else None

    def _pay(self, request: bytes, context: Any) -> bytes:
        self.asked.append(request)
        code = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if code == "late":
            over = threading.Event()
            context.add_callback(over.set)
            over.wait(10)
        if code == "large":
            return b"x" * 5_000_000  # more than a client takes
        if code != "OK":
            context.abort(grpc.StatusCode[code], "no")
        return b"paid"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Bank, str]]:
    bank = Bank()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((bank,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield bank, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def bank(served: tuple[Bank, str]) -> Bank:
    served[0].asked.clear()
    return served[0]


@pytest.fixture
def pay(served: tuple[Bank, str]) -> Iterator[Any]:
    with grpc.insecure_channel(served[1]) as channel:
        yield channel.unary_unary("/Bank/Pay")


def error_of(call: Any, **options: Any) -> Exception:
    with pytest.raises(Exception) as told:
        call(b"17", **{"timeout": 10, **options})
    return told.value


def test_every_status_has_its_verdict() -> None:
    assert {code.name for code in grpc.StatusCode} == CLEAN | AMBIGUOUS | {"OK"}


@pytest.mark.parametrize("code", sorted(CLEAN))
def test_a_status_that_a_server_sends_instead_of_acting_is_clean(bank: Bank, pay: Any, code: str) -> None:
    bank.script = [code]
    assert classify(error_of(pay)) == "clean"
    assert classify(error_of(wrap_errors(pay))) == "clean"


@pytest.mark.parametrize("code", sorted(AMBIGUOUS))
def test_a_status_that_may_come_after_acting_leaves_a_doubt(bank: Bank, pay: Any, code: str) -> None:
    bank.script = [code]
    assert classify(error_of(pay)) == "ambiguous"
    assert classify(error_of(wrap_errors(pay))) == "ambiguous"


def test_a_deadline_that_went_by_leaves_a_doubt(bank: Bank, pay: Any) -> None:
    bank.script = ["late"]
    late = error_of(pay, timeout=0.2)
    assert (late.code().name, classify(late), bank.asked) == ("DEADLINE_EXCEEDED", "ambiguous", [b"17"])  # type: ignore[attr-defined]


def test_an_answer_too_large_to_be_taken_leaves_a_doubt(bank: Bank, pay: Any) -> None:
    bank.script = ["large"]
    refused = error_of(pay)
    assert (refused.code().name, classify(refused)) == ("RESOURCE_EXHAUSTED", "ambiguous")  # type: ignore[attr-defined]


def test_a_refusal_is_that_of_the_last_try_only(bank: Bank, pay: Any) -> None:
    bank.script = ["UNAVAILABLE", "NOT_FOUND"]
    tried = GoogleRetry(initial=0.001, maximum=0.002)(wrap_errors(pay))
    refused = error_of(tried)
    assert (type(refused), len(bank.asked), classify(refused)) == (google.NotFound, 2, "ambiguous")
    bank.script = ["NOT_FOUND"]
    assert classify(error_of(tried)) == "ambiguous"  # that it was the first try is not told
    assert classify(error_of(wrap_errors(pay))) == "clean"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (google.NotFound("x"), "clean"),
        (google.BadRequest("x"), "clean"),
        (google.TooManyRequests("x"), "clean"),
        (google.Cancelled("x"), "ambiguous"),
        (google.Conflict("x"), "ambiguous"),
        (google.ServiceUnavailable("x"), "ambiguous"),
        (google.RetryError("x", cause=google.NotFound("y")), "ambiguous"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_google_clients_raise_about_http_is_judged_by_its_status(error: Exception, verdict: str) -> None:
    assert classify(error) == verdict


def test_a_never_step_is_not_repeated_after_its_call_was_cancelled(app: App, bank: Bank, pay: Any) -> None:
    bank.script = ["CANCELLED"]

    @app.step(repeat="never")
    def charge(order: int) -> None:
        pay(str(order).encode())

    @app.flow(key="order:{order}")
    def sell(order: int) -> None:
        charge(order)

    with pytest.raises(NeedsReview):
        sell(17)
    with pytest.raises(NeedsReview):
        sell(17)
    assert bank.asked == [b"17"]
