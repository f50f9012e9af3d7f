"""An entity-group transaction as one request, and what its answer says: OData's `$batch`, written here.

The official client writes it, too, but with a pipeline and a thread for each entity: two entities take longer than two
requests, and in a process that is ending nothing can be sent. The client still signs the request and sends it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from azure.core.exceptions import HttpResponseError, ServiceResponseError
from azure.core.rest import HttpRequest
from azure.data.tables import TableClient

from ..rows.table import ABSENT, ANY, Change

__all__ = ["columns_of", "send"]

ACCEPTED = 202
PIECE = 60_000  # bytes of a property, of at most 64 KiB
HEADERS = {"DataServiceVersion": "3.0", "MaxDataServiceVersion": "3.0;NetFx", "Accept": "application/json"}
PART = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: {number}\r\n\r\n"
INNER = (
    "Content-Type: application/json\r\nContent-Length: {length}\r\nAccept: application/json\r\n"
    "DataServiceVersion: 3.0\r\nx-ms-version: {version}\r\nPrefer: return-no-content\r\n"
)
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3})[^\r\n]*\r?\n(.*?)\r?\n\r?\n(.*?)(?=\r?\n--|\Z)", re.DOTALL)
ETAG = re.compile(rb"(?im)^ETag: *([^\r\n]+)")


def send(client: TableClient, changes: Sequence[Change]) -> Sequence[str | None]:
    """Carry out all changes or none, and return their ETags. Raises HttpResponseError as the client does."""
    account, batch, group = urlsplit(client.url), f"batch_{uuid4()}", f"changeset_{uuid4()}"
    base = f"{account.scheme}://{account.netloc}{account.path}"  # without a signature, which the client adds
    content = f"--{batch}\r\nContent-Type: multipart/mixed; boundary={group}\r\n\r\n".encode()
    for number, change in enumerate(changes):
        inner, entity = _operation(f"{base}/{client.table_name}", change, client.api_version)
        content += f"--{group}\r\n{PART.format(number=number)}{inner}".encode() + entity + b"\r\n"
    content += f"--{group}--\r\n--{batch}--\r\n".encode()
    kind = f"multipart/mixed; boundary={batch}"
    headers = {**HEADERS, "x-ms-version": client.api_version, "Content-Type": kind}
    request = HttpRequest("POST", f"{base}/$batch", headers=headers, content=content)
    answer = client._client.send_request(request, stream=True)  # or the pipeline would try to read it as JSON
    told = answer.read()
    if answer.status_code != ACCEPTED:
        error = _failed(answer.status_code, told)
        error.response = answer
        raise error
    etags = list(_etags(told))
    if len(etags) != len(changes):
        raise ServiceResponseError(f"{len(etags)} answers to {len(changes)} changes")  # it may have been done
    return etags


def columns_of(data: bytes) -> dict[str, bytes]:
    return {f"v{nth}": data[start : start + PIECE] for nth, start in enumerate(range(0, len(data), PIECE))}


def _operation(table: str, change: Change, version: str) -> tuple[str, bytes]:
    lane, key = str(change.place[0]), change.place[1]
    verb, path, guard = "PUT", f"(PartitionKey='{lane}',RowKey='{key}')", ""
    if change.data is None:
        verb, guard = "DELETE", "If-Match: *\r\n"
    if change.expected is ABSENT:
        verb, path = "POST", ""
    elif change.expected is not ANY:
        guard = f"If-Match: {change.expected}\r\n"
    entity = b"" if change.data is None else msgspec.json.encode(_entity(lane, key, change.data))
    headers = INNER.format(length=len(entity), version=version)
    return f"{verb} {table}{path} HTTP/1.1\r\n{headers}{guard}\r\n", entity


def _entity(lane: str, key: str, data: bytes) -> dict[str, Any]:
    entity: dict[str, Any] = {"PartitionKey": lane, "RowKey": key}
    for name, piece in columns_of(data).items():
        entity |= {f"{name}@odata.type": "Edm.Binary", name: b64encode(piece).decode()}
    return entity


def _etags(content: bytes) -> Iterator[str | None]:
    for status, headers, body in ANSWER.findall(content):
        if not 200 <= int(status) < 300:
            raise _failed(int(status), body)
        etag = ETAG.search(headers)
        yield etag[1].decode() if etag else None


def _failed(status: int, body: bytes) -> HttpResponseError:
    try:
        told = msgspec.json.decode(body)["odata.error"]
        code, message = str(told["code"]), str(told["message"]["value"])
    except (msgspec.DecodeError, KeyError, TypeError):
        code, message = "", body[:200].decode(errors="replace")
    error = HttpResponseError(message)
    error.status_code = status
    error.error_code = code  # type: ignore[attr-defined]
    return error
