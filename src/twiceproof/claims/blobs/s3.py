"""Large values as objects of an S3-compatible bucket. Credentials are found the way boto3 finds them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from ...errors import Misuse, StoreUnavailable
from . import BlobInfo

__all__ = ["S3Shelf"]


MOST_NAME = 1_024  # bytes of an object's name
MISSING = ("404", "NoSuchKey")


class S3Shelf:
    """`s3://bucket/prefix`; `?endpoint=http://…&region=…` for services other than Amazon's."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(split.query).items()}
        if not split.netloc or split.username or set(options) - {"endpoint", "region"}:
            raise Misuse("An S3 address is s3://bucket/prefix?endpoint=…&region=…; credentials belong elsewhere.")
        self.url = url
        self.bucket = split.netloc
        self._prefix = split.path.strip("/")
        self._client = _client(options)

    def put(self, path: str, source: BinaryIO) -> None:
        with _telling(self.url):
            self._client.upload_fileobj(_Lent(source), self.bucket, self._name(path))

    def copy(self, path: str, target: BinaryIO) -> bool:
        with _telling(self.url):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._name(path))
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in MISSING:
                    return False
                raise
            with contextlib.closing(answer["Body"]) as body:
                shutil.copyfileobj(body, target)
            return True

    def remove(self, path: str) -> None:
        with _telling(self.url):
            self._client.delete_object(Bucket=self.bucket, Key=self._name(path))

    def listing(self) -> Iterator[BlobInfo]:
        start = f"{self._prefix}/" if self._prefix else ""
        with _telling(self.url):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            for page in pages:
                for found in page.get("Contents", ()):
                    yield BlobInfo(found["Key"].removeprefix(start), found["LastModified"].timestamp())

    def _name(self, path: str) -> str:
        name = f"{self._prefix}/{path}" if self._prefix else path
        if len(name.encode()) > MOST_NAME:
            raise StoreUnavailable("The run's key is too long for an object's name; it is kept in the store.")
        return name


class _Lent:
    """A file that boto3 may read but not close: the caller owns it."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        return self._source.read(size)


def _client(options: dict[str, str]) -> Any:
    try:
        import boto3  # takes a while to load, and is an extra
    except ImportError:
        raise Misuse("s3:// needs boto3; install it with: pip install 'twiceproof[s3]'") from None
    return boto3.client("s3", endpoint_url=options.get("endpoint"), region_name=options.get("region"))


@contextlib.contextmanager
def _telling(url: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise StoreUnavailable(
            f"The resources in {url.partition('?')[0]} cannot be reached ({error}); check the bucket and the "
            "credentials, then try again.",
            unsure=False,
        ) from error
