"""Calls to SQS with limits: a client without retries of its own, threads that may be left behind, errors explained."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from ..threads import call_within

__all__ = [
    "ANSWER_SECONDS",
    "LONGEST_POLL",
    "THROTTLED",
    "CallFailed",
    "called",
    "client_of",
    "explained",
    "run_at_once",
]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
LONGEST_POLL = 20  # seconds
CALLS_AT_ONCE = 8
AMAZON_HOST = re.compile(r"(?:^|\.)sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?$|^([a-z]{2,3}(?:-[a-z]+)+-\d)$")

MISSING = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress")
LOGIN = (
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "AccessDenied",
    "ExpiredToken",
    "InvalidSecurity",
    "MissingAuthenticationToken",
)
THROTTLED = ("RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled")
KEY_SERVICE = ("KMS.", "Kms")  # errors of the service that encrypts the queue
UNSENT = (EndpointConnectionError, ConnectTimeoutError, NoCredentialsError, PartialCredentialsError)


class CallFailed(Exception):
    """A call without a result, and what follows from it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        answer = error.response if isinstance(error, ClientError) else {}
        self.code = str(answer.get("Error", {}).get("Code", ""))
        self.text = str(answer.get("Error", {}).get("Message", ""))
        self.status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

    @property
    def is_missing(self) -> bool:
        return self.code in MISSING

    @property
    def is_login(self) -> bool:
        """Whether it is about the access key, its secret or its permissions."""
        return self.code in LOGIN or self.status in (401, 403)

    @property
    def is_unsent(self) -> bool:
        return isinstance(self.error, UNSENT)

    @property
    def is_for_all(self) -> bool:
        """Whether SQS answers every request to this queue like that at the moment."""
        return self.code in THROTTLED or self.code.startswith(KEY_SERVICE) or self.status == 429

    @property
    def is_answer(self) -> bool:
        """Whether SQS has refused the request. After an error 500 or above the outcome is unknown."""
        return bool(self.code) and (self.status < 500 or self.code in THROTTLED)


def explained(url: str, error: BaseException, place: str = "") -> str:
    """Say what is wrong, without the secret, and the next move."""
    parts = urlsplit(url)
    where = f"SQS at {parts.hostname}{f':{parts.port}' if parts.port else ''}"
    failed = CallFailed(error)
    code = failed.code
    if failed.is_missing:
        return f"SQS has no queue {place!r}; create it, or correct the name."
    if failed.is_login:
        return f"{where} refuses the access key ({code}); check the key, its secret and its permissions."
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return "There are no credentials for SQS; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role."
    if code:
        return f"{where} refused: {code}; check the queue and its quotas."
    return f"{where} cannot be reached ({type(error).__name__}); check the address in the URL, and the network."


def client_of(url: str) -> Any:
    parts = urlsplit(url)
    host = parts.hostname or ""
    amazon = AMAZON_HOST.search(host)
    region = (amazon[1] or amazon[3]) if amazon else parts.path.strip("/") or "us-east-1"
    endpoint = (
        None if amazon else f"{'http' if parts.scheme == 'sqs+http' else 'https'}://{parts.netloc.split('@')[-1]}"
    )
    login = {"aws_access_key_id": unquote(parts.username or ""), "aws_secret_access_key": unquote(parts.password or "")}
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=LONGEST_POLL + ANSWER_SECONDS,
        max_pool_connections=CALLS_AT_ONCE,
        retries={"total_max_attempts": 1},  # a second attempt would hide that the outcome of the first is unknown
    )
    session = Session(**(login if parts.username else {}), region_name=region)
    return session.client("sqs", endpoint_url=endpoint, config=config)


def called(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
    return getattr(client, operation)(**arguments)


def run_at_once(calls: Sequence[Callable[[], Any]], seconds: float) -> list[Any]:
    """Make several calls at once, as `call_within` does. An answer without contents is an empty dict."""
    return call_within(seconds, [partial(_contents, call) for call in calls], "twiceproof-sqs", at_once=CALLS_AT_ONCE)


def _contents(call: Callable[[], Any]) -> Any:
    return call() or {}
