"""`http_pages`: the rows of an HTTP API, page by page, with a check that no row between two pages was skipped.

Three kinds of paging are supported: a cursor or URL in the body, a `Link` header, and an offset. With an offset, rows
move between pages while others are inserted and deleted. Each page is therefore requested to overlap the previous one:
if one row is on both pages, none was skipped. Otherwise the source counts as incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import msgspec
from msgspec import Struct

from ..claims.error_classification import retry_after
from ..effects.http_client import HttpAnswer, HttpRequest, shared_client
from ..errors import Misuse
from ..keys.canonical import digest
from ..secret import Env, Secret, secrets_of
from .readers import Reading, Row, Rows, SourceIncomplete

__all__ = ["http_pages"]

MOST_PAGES = 1_000_000
OVERLAP = 10  # the part of a page's rows that is requested again with the next page
_LINK = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')


class Paging(Struct, frozen=True):
    """How the pages of an API follow one another, and where its rows are."""

    items: str
    next: str | None = None  # where in the body: a URL, or a cursor
    link: bool = False
    offset: str | None = None  # the name of the parameter
    cursor: str = "cursor"  # the name of the parameter
    limit: str = "limit"  # the name of the parameter
    size: int = 100
    total: str | None = None  # where in the body: how many rows there are
    empty_last: bool = False


class HttpPages(Rows):
    """The rows of all pages."""

    def __init__(
        self,
        url: str,
        paging: Paging,
        headers: Mapping[str, str | Env],
        params: Mapping[str, Any],
        timeout: float,
        client: Callable[[], Any] | None,
    ) -> None:
        self._url = url
        self._paging = paging
        self._headers = headers
        self._params = params
        self._timeout = timeout
        self._client = client
        self.unstable = paging.offset is not None

    def rows(self, reading: Reading) -> Iterator[Row]:
        client = self._client() if self._client is not None else shared_client()
        read = self._by_offset if self._paging.offset else self._by_next
        yield from read(_Caller(client, self._headers, self._timeout, reading))

    # -- cursors and links -----------------------------------------------------------------------

    def _by_next(self, caller: _Caller) -> Iterator[Row]:
        url, params = self._url, dict(self._params)
        visited: set[str] = set()
        count, promised = 0, False
        while True:
            body, links = caller.get(url, params)
            page = self._items(body)
            if not page and promised and not self._may_end_empty(body, count):
                raise SourceIncomplete(f"page {len(visited) + 1} is empty, although the one before promised more")
            yield from page
            count += len(page)
            follows = self._follows(body, links)
            if not follows:
                self._compare_total(body, count)
                return
            if follows in visited or len(visited) >= MOST_PAGES:
                raise SourceIncomplete(f"page {len(visited) + 2} was given before: the pages go in a circle")
            visited.add(follows)
            promised = True
            url, params = self._at(url, follows)

    def _follows(self, body: Any, links: str) -> str:
        if self._paging.link:
            found = _LINK.search(links)
            return found[1] if found else ""
        return str(_at_path(body, self._paging.next) or "") if self._paging.next else ""

    def _at(self, url: str, follows: str) -> tuple[str, dict[str, Any]]:
        """Refuse a page on another server: it would be sent the headers, which may hold a token."""
        if not (self._paging.link or follows.startswith(("http://", "https://", "/"))):
            return self._url, {**self._params, self._paging.cursor: follows}
        there = urljoin(url, follows)
        if urlsplit(there)[:2] != urlsplit(self._url)[:2]:
            raise SourceIncomplete(f"the next page is at another server: {urlsplit(there).netloc}")
        return there, {}

    def _may_end_empty(self, body: Any, count: int) -> bool:
        stated = self._total(body)
        return self._paging.empty_last or (stated is not None and stated == count)

    # -- offsets ---------------------------------------------------------------------------------

    def _by_offset(self, caller: _Caller) -> Iterator[Row]:
        """Read until a page has nothing new. A short page is no end: a server may give fewer rows than it is asked for.

        Pages overlap, so that rows which moved between two of them are noticed.
        """
        paging, offset, count, length = self._paging, 0, 0, 0
        before: set[str] = set()
        while True:
            params = {**self._params, paging.offset or "": offset, paging.limit: paging.size}
            body, _ = caller.get(self._url, params)
            page = self._items(body)
            marks = [digest(row) for row in page]
            if offset == count == 1 and page:  # nothing that two pages have in common
                raise SourceIncomplete(f"the server gives pages of one row, and not of {paging.size}")
            if before and before.isdisjoint(marks) and count > 1:
                raise SourceIncomplete(f"the rows around offset {offset} moved while they were read")
            new = [row for row, mark in zip(page, marks, strict=True) if mark not in before]
            yield from new
            count += len(new)
            if not new:
                if page and len(page) >= length:
                    raise SourceIncomplete(f"the page at offset {offset} is the one before again")
                self._compare_total(body, count)
                return
            before, length = set(marks), len(page)
            offset += max(1, len(page) - max(1, len(page) // OVERLAP))

    # -- what a page has -------------------------------------------------------------------------

    def _items(self, body: Any) -> list[Row]:
        found = _at_path(body, self._paging.items) if self._paging.items else body
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise SourceIncomplete(f"a page has no list of rows at {self._paging.items or 'its top'!r}")
        return found

    def _total(self, body: Any) -> int | None:
        """Return how many rows the source says that it has. Without a number there, nothing could be compared."""
        if not self._paging.total:
            return None
        found = _at_path(body, self._paging.total)
        if isinstance(found, str) and found.isascii() and found.isdecimal():
            return int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise SourceIncomplete(f"a page has no number at {self._paging.total!r}, where total= looks for it")
        return found

    def _compare_total(self, body: Any, count: int) -> None:
        stated = self._total(body)
        if stated is not None and stated != count:
            raise SourceIncomplete(f"{count} rows came, and the source says that it has {stated}")


def http_pages(
    url: str,
    *,
    items: str = "data",
    next: str | None = None,  # noqa: A002 - the word that APIs use
    link: bool = False,
    offset: str | None = None,
    cursor: str = "cursor",
    limit: str = "limit",
    size: int = 100,
    total: str | None = None,
    empty_last: bool = False,
    headers: Mapping[str, str | Env] | None = None,
    params: Mapping[str, Any] | None = None,
    timeout: float = 30.0,
    client: Callable[[], Any] | None = None,
) -> HttpPages:
    """Read the rows of an HTTP API page by page: `http_pages(f"{BOOKS}/invoices", items="data", next="next")`.

    After 429 or 503 it waits as long as Retry-After says. Any other answer that is not a page of rows ends the reading,
    and the source counts as incomplete.

    Args:
        url: The first page.
        items: Where the rows are in a page: `data`, `result.items`, or "" for the top.
        next: Where a page names the one that follows, as a URL or as a cursor.
        link: The next page is named by the `Link` header.
        offset: The name of the parameter for the number of rows to skip.
        cursor: The name of the parameter for a cursor.
        limit: With `offset`, the name of the parameter for the number of rows of a page.
        size: With `offset`, how many rows a page has.
        total: Where a page says how many rows there are in all. They are compared at the end.
        empty_last: An empty last page is this API's way to end, and not a fault.
        headers: Sent with each request; a value may be `env("NAME")`.
        params: Parameters of the first page, or with `cursor` and `offset` of every page.
        timeout: Seconds for one request.
        client: Returns an `HttpClient`, for tests; by default the one that effects use (extra `http`).
    """
    if sum((next is not None, link, offset is not None)) > 1:
        raise Misuse("next=, link= and offset= are three ways to page; give one of them.")
    if size < 2:
        raise Misuse(f"size={size!r} leaves no row to compare two pages by; ask for 2 or more.")
    if urlsplit(url).scheme not in ("http", "https"):
        raise Misuse(f"{url!r:.80} is no URL of an API; write it like https://books.example.com/invoices")
    paging = Paging(items, next, link, offset, cursor, limit, size, total, empty_last)
    return HttpPages(url, paging, headers or {}, params or {}, timeout, client)


class _Caller:
    """Sends requests, and waits when the server demands it."""

    def __init__(self, client: Any, headers: Mapping[str, str | Env], timeout: float, reading: Reading) -> None:
        self._client = client
        self._timeout = timeout
        self._headers = {name: _value(value) for name, value in headers.items()}
        self._reading = reading

    def get(self, url: str, params: Mapping[str, Any]) -> tuple[Any, str]:
        """Return a page's body and its Link header."""
        request = HttpRequest("GET", _with_query(url, params), self._headers, timeout=self._timeout)
        starts, spent = 0, 0.0
        while True:
            starts += 1
            answer: HttpAnswer = self._client.send(request)
            if answer.status == 200:
                return _decoded(answer.body), answer.headers.get("link", "")
            pause = self._pause(answer, starts, spent)
            if pause is None:
                raise SourceIncomplete(f"a page was answered with {answer.status}")
            self._reading.clock.sleep(pause)
            spent += pause

    def _pause(self, answer: HttpAnswer, starts: int, spent: float) -> float | None:
        if answer.status not in (429, 503):
            return None
        asked = retry_after(_Refusal(answer), self._reading.clock.now())
        return self._reading.retry.delay(starts, spent, asked, self._reading.roll)


def _with_query(url: str, params: Mapping[str, Any]) -> str:
    """Parameters replace those of the same name that the URL has."""
    if not params:
        return url
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **params}
    return parts._replace(query=urlencode(query)).geturl()


class _Refusal(Exception):
    """An answer in the form from which Retry-After is read."""

    def __init__(self, response: HttpAnswer) -> None:
        super().__init__(str(response.status))
        self.response = response


def _value(value: str | Env) -> str:
    secret: Secret = value
    return secrets_of(secret)[0] if isinstance(value, Env) else value


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        raise SourceIncomplete("a page is no JSON, or was cut off") from None


def _at_path(body: Any, path: str | None) -> Any:
    for name in (path or "").split("."):
        if not isinstance(body, dict):
            return None
        body = body.get(name)
    return body
