"""Logging in with a token, and logging out."""

from __future__ import annotations

from urllib.parse import urlsplit

from ....inbound.reply import Reply
from ....safe_text import suggested_command
from ...limits import Buckets
from ...request import ApiRequest
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec, refused
from ..forms import FormFields, require_own_page
from ..session import LASTS, PLAIN, SECURE, cookie_header, session_name

__all__ = ["PAGES", "own_path"]

CREATE = ("tokens", "create", "NAME", "--scope", "read", "--scope", "approve")


def own_path(text: str) -> str:
    """Return a path of this server to go on to; "/" for anything that leads elsewhere, as `//example.com` does."""
    parts = urlsplit(text)
    is_own = text.startswith("/") and text[1:2] not in ("/", "\\") and not (parts.scheme or parts.netloc)
    return text if is_own and text.isascii() and text.isprintable() else "/"


def _form(page: PageRequest, status: int = 200, next_: str = "/", *, refused: bool = False) -> Reply:
    command = suggested_command(*page.where, *CREATE)
    link = page.asked("link")
    return page.show("login.html", "Log in", status, next=next_, refused=refused, command=command, link=link)


async def ask(page: PageRequest) -> Reply:
    return _form(page, next_=own_path(page.asked("next", "/")))


async def login(page: PageRequest) -> Reply:
    """Begin a session, by a token or by a link for one login. Wrong, expired and revoked ones get the same answer."""
    require_own_page(page.call)
    fields = FormFields.of(page.call)
    _take(page.dashboard.logins, page.call)
    next_ = own_path(fields.get("next", "/"))
    sessions, link = page.dashboard.sessions, fields.get("link", "")
    cookie = await (sessions.begin_by_link(link) if link else sessions.begin(fields.get("token", "").strip()))
    if cookie is None:
        return _form(page, 401, next_, refused=True)
    return Reply(303, (("location", next_), _cookie(page.call, cookie, LASTS)))


def _take(logins: Buckets, call: ApiRequest) -> None:
    """Apply the limit of logins, also to this machine: behind a proxy, others would share its address."""
    wait = logins.take(call.client, call.app.clock.monotonic())
    if wait:
        raise refused(
            429, "rate-limited", "There were too many logins from this address.", next_move="Wait a few seconds."
        )


def _cookie(call: ApiRequest, value: str, seconds: float) -> tuple[str, str]:
    forwarded = call.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
    is_tls = "https" in (call.scheme, forwarded, urlsplit(call.app.settings.url).scheme)
    host = urlsplit(f"//{call.headers.get('host', '')}").hostname or ""
    return cookie_header(value, scheme="https" if is_tls else "http", host=host, seconds=seconds)


async def logout(page: PageRequest) -> Reply:
    require_own_page(page.call)
    name = session_name({b"cookie": page.call.headers.get("cookie", "").encode("latin-1")})
    if name:
        await page.dashboard.sessions.end(name)
    gone = [("set-cookie", f"{one}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax{more}") for one, more in GONE]
    return Reply(303, (("location", "/login"), *gone))


GONE = ((SECURE, "; Secure"), (PLAIN, ""))

PAGES = (
    PageSpec("GET", "/login", Scope.OPEN, ask),
    PageSpec("POST", "/login", Scope.OPEN, login),
    PageSpec("POST", "/logout", Scope.OPEN, logout),
)
