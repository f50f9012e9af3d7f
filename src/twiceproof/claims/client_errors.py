"""What errors of well-known clients say about the work: by the names of their classes, and by the status they carry.

No client is imported: that would cost every program that uses another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal

__all__ = [
    "REFUSED_STATUS",
    "is_refusal",
    "may_have_retried",
    "of_class",
    "of_grpc",
    "safe_getattr",
    "says_key_was_used",
    "status_of",
]


def safe_getattr(error: object, name: str) -> Any:
    """Return an attribute or None. Never fails: a property that raises must not hide the error itself."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - whatever it is, the error itself matters more
        return None


# What a server sends instead of acting. Every other status may come after it acted, or from a proxy on the way (499).
REFUSED_STATUS = frozenset(
    {
        400,
        401,
        403,
        404,
        405,
        406,
        410,
        411,
        412,
        413,
        414,
        415,
        416,
        417,
        421,
        422,
        423,
        426,
        428,
        429,
        431,
        451,
    }
)
# The same of gRPC. Not RESOURCE_EXHAUSTED: a client says so, too, of an answer that is larger than it takes. Not
# ALREADY_EXISTS: what is there may be ours.
REFUSED_CODES = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
    }
)
# Never sent, or refused. By the bare names of classes, which HTTP and mail clients share ...
CLEAN_NAMES = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ClientConnectorError",
        "NewConnectionError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "SSLCertVerificationError",
        "SMTPConnectError",
        "SMTPHeloError",
        "SMTPAuthenticationError",
        "SMTPSenderRefused",
        "SMTPRecipientsRefused",
        "SMTPDataError",
        "SMTPNotSupportedError",
    }
)
# ... and in full, where other packages give the same name to other things.
CLEAN_CLASSES = frozenset(
    {
        "requests.exceptions.InvalidURL",
        "requests.exceptions.MissingSchema",
        "requests.exceptions.InvalidSchema",
        "requests.exceptions.InvalidHeader",
        "httpx.InvalidURL",
        "httpx.UnsupportedProtocol",
        "httpx2.InvalidURL",
        "httpx2.UnsupportedProtocol",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
        "aiohttp.client_exceptions.InvalidUrlClientError",
        "aiohttp.client_exceptions.NonHttpUrlClientError",
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.PartialCredentialsError",
        "botocore.exceptions.CredentialRetrievalError",
        "botocore.exceptions.ParamValidationError",
        "botocore.exceptions.NoRegionError",
        "google.auth.exceptions.RefreshError",
        "google.auth.exceptions.DefaultCredentialsError",
        "azure.core.exceptions.ServiceRequestError",
        "stripe.error.CardError",
        "stripe._error.CardError",
        "redis.exceptions.DataError",
        "redis.exceptions.AuthenticationError",
        "redis.exceptions.BusyLoadingError",
        "redis.exceptions.MaxConnectionsError",
    }
)
# Perhaps sent, and no answer, or one that could not be read.
AMBIGUOUS_NAMES = frozenset(
    {
        "TransportError",
        "Timeout",
        "TimeoutError",
        "TimeoutExpired",
        "ConnectionError",
        "ConnectionClosedError",
        "ClientConnectionError",
        "ClientPayloadError",
        "HTTPClientError",
        "SMTPServerDisconnected",
        "IncompleteRead",
        "IncompleteReadError",
        "BadStatusLine",
        "SSLError",
        "ReadTimeoutError",
        "ProtocolError",
        "ProxyError",
        "MaxRetryError",
        "TooManyRedirects",
        "ChunkedEncodingError",
        "APIConnectionError",
        "ServiceResponseError",
    }
)
AMBIGUOUS_CLASSES = frozenset(
    {
        "requests.exceptions.ContentDecodingError",
        "requests.exceptions.RetryError",
        "urllib3.exceptions.DecodeError",
        "urllib3.exceptions.ResponseError",
        "aiohttp.client_exceptions.InvalidUrlRedirectClientError",
        "aiohttp.client_exceptions.NonHttpUrlRedirectClientError",
        "httpx.DecodingError",
        "httpx2.DecodingError",
        "google.api_core.exceptions.RetryError",
    }
)
# Clients that send a request again by default, and whose errors do not say whether they did. What they raise about the
# last request does not tell of an earlier one.
RETRYING_CLASSES = frozenset(
    {
        "botocore.exceptions.EndpointConnectionError",
        "botocore.exceptions.ConnectTimeoutError",
        "botocore.exceptions.ProxyConnectionError",
        "azure.core.exceptions.HttpResponseError",
        "azure.core.exceptions.ServiceRequestError",
        "redis.exceptions.AuthenticationError",
        "redis.exceptions.BusyLoadingError",
        "redis.exceptions.MaxConnectionsError",
    }
)
# The key was used before, by another request, which may have been carried out: the status (400) is about this one.
KEY_USED_CLASSES = frozenset({"stripe.error.IdempotencyError", "stripe._error.IdempotencyError"})
STATUS_NAMES = ("status_code", "status", "code", "http_status")


def is_refusal(status: int) -> bool:
    return status in REFUSED_STATUS


def of_class(kind: type) -> Literal["clean", "ambiguous"] | None:
    """Return what is known of a class or its bases. The nearest one counts: to some clients, a connection that could
    not be made is a kind of broken connection."""
    for one in kind.__mro__:
        full = f"{one.__module__}.{one.__qualname__}"
        if one.__name__ in CLEAN_NAMES or full in CLEAN_CLASSES:
            return "clean"
        if full in AMBIGUOUS_CLASSES:
            return "ambiguous"
    return None if AMBIGUOUS_NAMES.isdisjoint(one.__name__ for one in kind.__mro__) else "ambiguous"


def may_have_retried(error: BaseException) -> bool:
    """Return whether this error comes from a client that retries by default and does not say whether it did."""
    return any(f"{one.__module__}.{one.__qualname__}" in RETRYING_CLASSES for one in type(error).__mro__)


def says_key_was_used(error: BaseException) -> bool:
    """Return whether a provider refused an idempotency key because another request has used it."""
    return any(f"{one.__module__}.{one.__qualname__}" in KEY_USED_CLASSES for one in type(error).__mro__)


def _is_grpc(carrier: object) -> bool:
    return any((one.__module__, one.__name__) == ("grpc", "RpcError") for one in type(carrier).__mro__)


def of_grpc(error: BaseException) -> Literal["clean", "ambiguous"] | None:
    """Return the verdict on a gRPC error, or one that google-api-core wraps; None: it is neither."""
    for carrier in (error, safe_getattr(error, "response")):
        if _is_grpc(carrier):
            return "clean" if _code_of(carrier) in REFUSED_CODES else "ambiguous"
    return None


def _code_of(error: Any) -> str:
    code = safe_getattr(error, "code")
    try:
        return str(code().name)
    except Exception:  # noqa: BLE001 - a custom RpcError without a status
        return ""


def status_of(error: BaseException) -> int | None:
    """Return the status of the answer that an HTTP client's error carries, if any."""
    response = safe_getattr(error, "response")
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None  # botocore's: parsed already
    told = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    # One by one: aiohttp has a `status`, and warns if its `code` is read.
    found = (safe_getattr(carrier, name) for name in STATUS_NAMES for carrier in (response, error))
    return next((status for status in chain(found, [told]) if isinstance(status, int) and 400 <= status < 600), None)
