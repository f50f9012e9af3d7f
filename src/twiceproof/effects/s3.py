"""Objects of S3 that are written once: `s3.put("bucket", "invoices/17.pdf", data)`.

`If-None-Match: *` makes the service refuse a second object of the same name, and the object's metadata carry the effect
key, by which an object of an earlier attempt is recognised. Amazon documents this. Some other services (`endpoint=…`)
ignore the header and overwrite, so each bucket there is tested once with a small object.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from hashlib import sha256
from typing import Any, NoReturn

from msgspec import Struct

from ..claims.client_errors import is_refusal
from ..errors import Misuse, NotDone, OutcomeUnknown
from ..keys.duration import LONGEST
from ..threads import at_fork
from .base import Absent, Happened, Look, Unknown, outgoing_headers, require
from .repeat import NEVER, Declared, keyed

__all__ = ["ObjectPut", "S3Bucket", "StoredObject", "bucket", "put"]

EFFECT_KEY = "effect-key"  # in the object's metadata: x-amz-meta-effect-key
PROBE = ".twiceproof-probe"
EXISTS, CONFLICT, TOO_MANY = 412, 409, 429
MISSING = ("404", "NoSuchKey", "NotFound")
SLACK = 5.0
UNSENT = ("EndpointConnectionError", "ConnectTimeoutError", "NoCredentialsError", "ProxyConnectionError", "SSLError")


class StoredObject(Struct, frozen=True):
    bucket: str
    key: str
    etag: str
    size: int


class S3Bucket(Struct, frozen=True):
    """`bucket(…)`. Credentials are found the way boto3 finds them."""

    name: str
    endpoint: str = ""
    region: str = ""
    conditional: bool | None = None
    timeout: float = 60.0


def bucket(
    name: str, *, endpoint: str = "", region: str = "", conditional: bool | None = None, timeout: float = 60.0
) -> S3Bucket:
    """Return a bucket. `endpoint` is for services other than Amazon's.

    `conditional` says whether the service honours `If-None-Match: *`. By default Amazon is trusted, and another service
    is tested once with the object `.twiceproof-probe`. With False nothing is repeated blindly, and a put may overwrite.
    """
    if not name:
        raise Misuse("A bucket needs a name; give it.")
    known = True if conditional is None and not endpoint else conditional
    return S3Bucket(name, endpoint, region, known, timeout)


def put(where: str | S3Bucket, key: str, data: bytes | str, *, content_type: str = "") -> ObjectPut:
    """Create an object, and never replace one. An existing object that is not ours is a final refusal."""
    if not key or len(key.encode()) > 1_024 or key == PROBE:
        raise Misuse(f"{key[:60]!r} is not the name of an object; give 1 to 1,024 bytes.")
    require("boto3", "s3", "s3.put")
    body = data.encode() if isinstance(data, str) else bytes(data)
    return ObjectPut(bucket(where) if isinstance(where, str) else where, key, body, content_type)


_known: dict[S3Bucket, bool] = {}  # whether a bucket was seen to honour the condition
_probing = threading.Lock()


class ObjectPut(Struct, frozen=True):
    """`put(…)`: the service deduplicates by the object's name, for ever. `never` where it ignores the condition."""

    bucket: S3Bucket
    key: str
    data: bytes
    content_type: str = ""

    @property
    def name(self) -> str:
        return f"put {self.bucket.name}/{self.key}"

    @property
    def repeat(self) -> Declared:
        if _known.get(self.bucket, self.bucket.conditional) is False:
            return NEVER
        return keyed(window=LONGEST, look=self.look, settling=self.bucket.timeout + SLACK)

    @property
    def result_type(self) -> Any:
        return StoredObject

    def describe(self) -> dict[str, Any]:
        where = f"{self.bucket.endpoint or 's3:/'}/{self.bucket.name}/{self.key}"
        return {"put": where, "sha256": sha256(self.data).hexdigest(), "type": self.content_type}

    def perform(self, effect_key: str) -> StoredObject:
        conditional = self._is_conditional()
        if not conditional and (ours := self._refuse_other(effect_key)):  # another writer may still come in between
            return ours
        options = {"IfNoneMatch": "*"} if conditional else {}
        if self.content_type:
            options["ContentType"] = self.content_type
        try:
            answer = self._put(self.key, self.data, {EFFECT_KEY: effect_key, **_correlation()}, options)
        except Exception as error:  # noqa: BLE001 - boto3's errors have no common base
            return self._judge(error, effect_key)
        return StoredObject(self.bucket.name, self.key, str(answer["ETag"]).strip('"'), len(self.data))

    def look(self, effect_key: str) -> Look:
        try:
            found = self._head()
        except Exception as error:  # noqa: BLE001 - the look's failure tells nothing
            return Unknown(f"the object cannot be looked up ({error})", failed=True)
        if found is None:
            return Absent()
        if found["Metadata"].get(EFFECT_KEY) != effect_key:
            return Unknown("another's object has this name")
        return Happened(self._stored(found))

    # -- the condition ---------------------------------------------------------------------------

    def _is_conditional(self) -> bool:
        """Whether the bucket refuses a second object of one name: as declared, or as tested."""
        if self.bucket.conditional is not None:
            return self.bucket.conditional
        with _probing:
            if self.bucket not in _known:
                _known[self.bucket] = self._probe()
        if not _known[self.bucket]:
            raise NotDone(
                f"{self.bucket.endpoint} ignores If-None-Match, so a repeat would overwrite: nothing was written. Use "
                "another service, or accept that with s3.bucket(…, conditional=False).",
                final=True,
            )
        return True

    def _probe(self) -> bool:
        """Create the test object; if it exists already, one request is enough."""
        for _ in range(2):
            try:
                self._put(PROBE, b"", {}, {"IfNoneMatch": "*"})
            except Exception as error:
                if _status(error) == EXISTS:
                    return True
                raise NotDone(f"the bucket {self.bucket.name} could not be asked ({error}); try again.") from error
        return False

    def _judge(self, error: Exception, effect_key: str) -> StoredObject:
        """Return the object if an earlier attempt created it, or raise what the error means."""
        status = _status(error)
        if status == EXISTS:
            return self._refuse_other(effect_key) or self._retry("it was there, and is removed", error)
        if status == CONFLICT:
            self._retry("another writes it at this moment", error)
        if status is not None and is_refusal(status):
            raise NotDone(f"{self.name} is refused ({error}).", final=status != TOO_MANY) from error
        if type(error).__name__ in UNSENT:
            self._retry(f"it was not sent ({error})", error)
        if type(error).__name__ == "ParamValidationError":
            raise Misuse(f"{self.name}: this boto3 cannot send it ({error}); install boto3 1.36 or later.") from error
        raise OutcomeUnknown(f"{self.name} got no answer that tells ({error}).") from error

    def _retry(self, why: str, error: Exception) -> NoReturn:
        raise NotDone(f"{self.name}: {why}; it can be tried again.") from error

    def _refuse_other(self, effect_key: str) -> StoredObject | None:
        try:
            found = self._head()
        except Exception as error:
            raise OutcomeUnknown(f"{self.name}: an object is there that cannot be looked up ({error}).") from error
        if found is None:
            return None
        if found["Metadata"].get(EFFECT_KEY) == effect_key:
            return self._stored(found)
        raise NotDone(f"{self.name}: another's object has this name; choose another name, or remove it.", final=True)

    # -- requests --------------------------------------------------------------------------------

    def _put(self, key: str, data: bytes, metadata: dict[str, str], options: dict[str, str]) -> Any:
        client = _client(self.bucket)
        return client.put_object(Bucket=self.bucket.name, Key=key, Body=data, Metadata=metadata, **options)

    def _head(self) -> Any:
        client = _client(self.bucket)
        try:
            return client.head_object(Bucket=self.bucket.name, Key=self.key)
        except client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") in MISSING:
                return None
            raise

    def _stored(self, found: Any) -> StoredObject:
        return StoredObject(self.bucket.name, self.key, str(found["ETag"]).strip('"'), int(found["ContentLength"]))


def _correlation() -> dict[str, str]:
    return {name: value for name, value in outgoing_headers.get().items() if value.isascii() and value.isprintable()}


def _status(error: Exception) -> int | None:
    answer = getattr(error, "response", None)
    found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
    return found if isinstance(found, int) else None


@lru_cache(32)
def _client(where: S3Bucket) -> Any:
    """A client that sends each request once: a retry of its own would make "not done" untrue."""
    import boto3
    from botocore.config import Config

    half = where.timeout / 2
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=half, read_timeout=half)
    session = boto3.session.Session()
    return session.client("s3", endpoint_url=where.endpoint or None, region_name=where.region or None, config=config)


def _reset_after_fork(clients: Any) -> None:
    """In a forked child: the connections belong to the parent, and the lock may be held by a thread that does not exist
    here.
    """
    global _probing
    _probing = threading.Lock()
    clients.cache_clear()


at_fork(_client, in_child=_reset_after_fork)
