"""Resources: large values, passed by reference and loaded when needed."""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from msgspec import Struct

from ..claims.blobs.records import IN_MEMORY, in_store, load, put_blob
from ..claims.results import resource_address
from ..errors import Misuse, ResultNotKept
from ..operations import InThread, Operation, await_, block
from ..records import Insert
from .engine.context import Attempt, BytesOrAwaitable, StrOrAwaitable, attempt_var, session_var
from .runtime import own_space

if TYPE_CHECKING:
    from .engine.session import Drive, Session
    from .runtime import Runtime

__all__ = ["Resource", "ResourceOrAwaitable", "Source", "inline", "keep"]


Source = bytes | str | Path | IO[bytes]
INLINE = "data:;base64,"


class HasRuntime(Protocol):
    """The part of an app that reading a resource needs."""

    @property
    def runtime(self) -> Runtime: ...


class Resource(Struct, frozen=True, omit_defaults=True):
    """Plain data: it can be returned, passed on and stored. In an `async def` flow or step, reading is awaited.

    Outside a flow, say in which app: `resource.read(app)`.
    """

    ref: str  # res://run/name; a value made outside any run is contained in it
    size: int
    digest: str  # SHA-256
    media_type: str = "application/octet-stream"
    name: str = ""

    def read(self, app: HasRuntime | None = None) -> BytesOrAwaitable:
        """All of its bytes."""
        return cast(BytesOrAwaitable, _driver(app)(_read(self, app)))

    def text(self, app: HasRuntime | None = None) -> StrOrAwaitable:
        """The same as text (UTF-8)."""
        return cast(StrOrAwaitable, _driver(app)(_text(self, app)))

    def open(self, app: HasRuntime | None = None) -> Any:
        """Open it as a file, for values too large for memory."""
        return _driver(app)(_open(self, app))


class ResourceOrAwaitable(Resource, frozen=True):
    """For type checkers only: a `Resource` in a `def` step, an awaitable of it in an `async def` step."""

    def __await__(self) -> Generator[Any, Any, Resource]:
        raise NotImplementedError


# -- reading -------------------------------------------------------------------------------------


def _open(resource: Resource, app: HasRuntime | None) -> Operation[IO[bytes]]:
    if resource.ref.startswith(INLINE):
        return io.BytesIO(b64decode(resource.ref.removeprefix(INLINE)))
    run, found, _ = resource.ref.removeprefix("res://").partition("/")
    if not found or not resource.ref.startswith("res://"):
        raise Misuse(f"{resource.ref[:80]!r} is no reference to a resource; it begins with res://")
    runtime = _runtime_of(app)
    at = resource_address(own_space(runtime.tenant, run), resource.ref)
    record = (yield from runtime.store.read(at)).record
    if record is None:
        raise ResultNotKept(
            f"{resource.ref} is no longer kept: it goes when its run is forgotten. Keep the run longer (keep=…).",
            digest=resource.digest,
            size=resource.size,
        )
    return (yield from load(record))


def _read(resource: Resource, app: HasRuntime | None) -> Operation[bytes]:
    with (yield from _open(resource, app)) as file:
        return file.read()


def _text(resource: Resource, app: HasRuntime | None) -> Operation[str]:
    return (yield from _read(resource, app)).decode()


def _runtime_of(app: HasRuntime | None) -> Runtime:
    session = session_var.get()
    if app is None and session is None:
        raise Misuse("A resource is read in a flow or a step; elsewhere say in which app: resource.read(app).")
    return app.runtime if app is not None else cast("Session", session).runtime


def _driver(app: HasRuntime | None) -> Drive:
    """Blocking or awaiting, like the calling function."""
    session, attempt = session_var.get(), attempt_var.get()
    if session is None:
        return block
    if attempt is None:
        return session.do
    return await_ if is_async(session, attempt) else block


def is_async(session: Session, attempt: Attempt) -> bool:
    calling = session.calls.get(attempt.step)
    return calling is not None and calling.step.is_async


# -- making --------------------------------------------------------------------------------------


def keep(session: Session, attempt: Attempt, source: Source, name: str, media_type: str) -> Operation[Resource]:
    """Stored beside the run's claim before the step continues: a crashed attempt leaves nothing half-written."""
    file: IO[bytes] = yield from InThread(lambda: _opened(source))
    with file:
        digest, size = yield from InThread(lambda: _measure(file))
        _refuse_too_large(size, session.runtime.claims.value_limit)
        mark = sha256(attempt.step.encode()).hexdigest()[:12]
        ref = f"res://{session.claim.run}/{session.hold.held.fence}.{attempt.starts}-{mark}-{digest[:16]}"
        piece = Insert(resource_address(session.space, ref), "")
        shelf = session.runtime.claims.blobs
        if shelf is None:
            piece = in_store(piece, file.read())
        else:
            piece = yield from put_blob(shelf, piece, cast(BinaryIO, file), digest, size)
        yield from session.ledger.flush(piece)  # a conflict is with itself: the same value, made twice in a step
    return Resource(ref, size, digest, media_type or _media_type(source), name)


def inline(source: Source, name: str, media_type: str) -> Resource:
    """Outside a run there is no record to store it with: the reference contains the value."""
    with _opened(source) as file:
        data = file.read()
    ref = INLINE + b64encode(data).decode()
    return Resource(ref, len(data), sha256(data).hexdigest(), media_type or _media_type(source), name)


def _opened(source: Source) -> IO[bytes]:
    """A file that can be read twice: once for its digest, once to be stored."""
    if isinstance(source, str):
        return io.BytesIO(source.encode())
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source)
    if isinstance(source, Path):
        return source.open("rb")
    if not hasattr(source, "read"):
        raise Misuse(f"A resource is made of bytes, text, a path or a file, not of {type(source).__name__}; open it.")
    spooled = cast(IO[bytes], SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115 - closed by the caller
    while part := source.read(1024 * 1024):
        spooled.write(part)
    spooled.seek(0)
    return spooled


def _measure(file: IO[bytes]) -> tuple[str, int]:
    digest, size = sha256(), 0
    while part := file.read(1024 * 1024):
        digest.update(part)
        size += len(part)
    file.seek(0)
    return digest.hexdigest(), size


def _refuse_too_large(size: int, room: int) -> None:
    if size > room:
        raise Misuse(
            f"A resource of {size:,} bytes is more than the {room:,} that there is room for; keep resources "
            'elsewhere: App(resources="dir:///…") or "s3://bucket/prefix".'
        )


def _media_type(source: Source) -> str:
    return "text/plain; charset=utf-8" if isinstance(source, str) else "application/octet-stream"
