"""Forms of pages: who may send one, and one act for each, even if it is sent several times.

A form is accepted from this server's own pages only, with a token that was made for this session. The token is claimed
before the act: a double click, a reload and the back button get the first outcome again. Other contents are never
answered with it: they are refused, or carried out where the first ones were refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import body_of
from ...claims.states import EXPIRE
from ...errors import TwiceproofError
from ...inbound.reply import JSON, Reply, problem
from ...operations import Operation, await_
from ...records import SELF, Address, Insert, Replace, Written, record_kind
from ...stores.base import Store
from .. import problems
from ..limits import too_deep
from ..request import ApiRequest, RequestRefused
from ..tokens import StoreSigner

__all__ = [
    "FIELD",
    "FormFields",
    "FormOutcome",
    "Submission",
    "api_call",
    "body_with",
    "form_token",
    "require_own_page",
]

KIND = record_kind("form", expires=True)
SPACE = "~forms"  # cannot clash with a tenant: their names have no tilde
FIELD = "form"
FORM = "application/x-www-form-urlencoded"
VALID = 12 * 3_600.0  # seconds for which a page may stay open: as long as a session
KEEP = 86_400.0  # seconds for which the outcome is known, so that a reload gets it
MOST_FIELDS = 500
SERVER_ERROR = 500
OPEN = "open"  # in place of a session where no token exists


def form_token(signer: StoreSigner, session: str, now: float) -> str:
    """Return a token for one form of one page. Nothing is stored when a page is opened."""
    stem = f"{int(now):x}.{secrets.token_hex(12)}"
    return f"{stem}.{signer.sign('form', session or OPEN, stem)}"


def _is_valid(signer: StoreSigner, token: str, session: str, now: float) -> bool:
    stem, _, mark = token.rpartition(".")
    issued = stem.partition(".")[0]
    if not signer.signed(mark, "form", session or OPEN, stem):
        return False
    return -VALID <= now - int(issued, 16) <= VALID


def require_own_page(call: ApiRequest) -> None:
    """Refuse what a page of another site sent: browsers say where a request comes from."""
    site, origin = call.headers.get("sec-fetch-site"), call.headers.get("origin", "")
    own = {call.headers.get("host", ""), urlsplit(call.app.settings.url).netloc} - {""}
    is_own = origin.rpartition("//")[2] in own if origin else False
    if is_own if site is None else site == "same-origin" and (is_own or not origin):
        return
    raise RequestRefused(
        problem(403, "cross-site", "This was sent from a page of another site.", next_move="Open the page itself.")
    )


class FormFields(dict[str, str]):
    """The fields of a form. One that is named several times is a list: ticked rows."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.pairs if known == name]

    def require_depth(self, most: int) -> None:
        """Refuse JSON that is nested too deeply, before it is parsed: as in a body of the API."""
        for _, value in self.pairs:
            if value.lstrip()[:1] in ("[", "{") and too_deep(value.encode(), most):
                raise _wrong_form(f"A value is nested deeper than {most} levels.")

    @classmethod
    def of(cls, call: ApiRequest) -> FormFields:
        if not call.headers.get("content-type", "").startswith(FORM):
            raise _wrong_form("This address takes a form.")
        try:
            text = call.body.decode()
            return cls(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
        except ValueError:
            raise _wrong_form("The form cannot be read.") from None


def _wrong_form(why: str) -> RequestRefused:
    return RequestRefused(problem(400, "wrong-form", why, next_move="Open the page again, and send its form."))


class FormOutcome(Struct, frozen=True, omit_defaults=True):
    """The outcome of a form: the page that it led to, or the problem. `digest`: of what was sent."""

    location: str = ""
    status: int = 303
    problem: Raw = Raw(b"{}")
    digest: str = ""

    def reply(self) -> Reply:
        if self.location:
            return Reply(self.status, (("location", self.location),))
        return Reply(self.status, (("content-type", "application/problem+json"),), bytes(self.problem))

    @property
    def is_known(self) -> bool:
        """Whether it tells what was done: a store that does not answer may have done it."""
        return self.status < SERVER_ERROR

    @classmethod
    def refused(cls, reply: Reply) -> FormOutcome:
        return cls("", reply.status, Raw(reply.body))


Act = Callable[[], Awaitable[FormOutcome]]


class Submission:
    """One form that was sent. `run` carries the act out, unless it was carried out before."""

    def __init__(self, call: ApiRequest, fields: FormFields, session: str, signer: StoreSigner) -> None:
        require_own_page(call)
        token = fields.get(FIELD, "")
        if not _is_valid(signer, token, session, call.now):
            raise RequestRefused(
                problem(
                    403,
                    "stale-form",
                    "This form is not from a page that was opened recently in this session.",
                    next_move="Open the page again, look, and send it.",
                )
            )
        self._store = call.app.store
        self._at = Address(f"{SPACE}/{token.rpartition('.')[0]}", KIND, SELF)
        self._digest = sha256(urlencode([one for one in fields.pairs if one[0] != FIELD]).encode()).hexdigest()

    async def run(self, act: Act) -> Reply:
        earlier = await await_(_claim(self._store, self._at, self._digest))
        if earlier is not None:
            return earlier.reply()
        outcome = await _carried_out(act)
        if outcome.is_known:
            await await_(_note(self._store, self._at, structs.replace(outcome, digest=self._digest)))
        return outcome.reply()


def _claim(store: Store, at: Address, digest: str) -> Operation[FormOutcome | None]:
    """Return the outcome of an earlier submission of the same form, or None if this one is to be carried out: it is the
    first, or corrects one that was refused.
    """
    written = yield from store.write(Insert(at, digest, "begun", queue=EXPIRE, due_in=KEEP))
    if isinstance(written, Written):
        return None
    record = written.found or (yield from store.read(at)).record
    if record is None:
        return None  # it has expired since
    if record.state != "ended":
        return _again("and its outcome is not known yet") if record.body in ("", digest) else _again(OTHERWISE)
    outcome = msgspec.json.decode(record.body, type=FormOutcome)
    if outcome.digest in ("", digest):
        return outcome
    if outcome.location:
        return _again(OTHERWISE)
    correction = Replace(at, digest, "begun", version=record.version, queue=EXPIRE, due_in=KEEP)
    taken = isinstance((yield from store.write(correction)), Written)
    return None if taken else _again("and its outcome is not known yet")


OTHERWISE = "with other contents; what is sent now was not done"


def _again(how: str) -> FormOutcome:
    return FormOutcome.refused(
        problem(
            409,
            "sent-before",
            f"This form was sent before, {how}.",
            next_move="Look at the run or claim; if nothing has happened, open the page again and send it.",
        )
    )


async def _carried_out(act: Act) -> FormOutcome:
    try:
        return await act()
    except RequestRefused as refused:
        return FormOutcome.refused(refused.reply)
    except TwiceproofError as error:
        return FormOutcome.refused(problems.of_error(error) or problems.internal_error())


def _note(store: Store, at: Address, outcome: FormOutcome) -> Operation[None]:
    record = (yield from store.read(at)).record
    if record is not None:
        ended = Replace(at, body_of(outcome), "ended", version=record.version, queue=EXPIRE, due_in=KEEP)
        yield from store.write(ended)


# -- an act is what the same route of the API does -----------------------------------------------


def body_with(fields: dict[str, Any], **raw: str) -> bytes:
    """Return a JSON body. `raw` are values that a person typed as JSON: they are passed on as they were typed."""
    given = {name: Raw(text.encode()) for name, text in raw.items()}
    for name, text in raw.items():
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise RequestRefused(
                problem(
                    400,
                    "not-json",
                    f"The {name} is not JSON: {error}.",
                    next_move='Write it as JSON: a text in quotes ("inv_1"), a number, an object, or null.',
                )
            ) from None
    return msgspec.json.encode({**fields, **given})


def api_call(call: ApiRequest, params: dict[str, str], body: bytes) -> ApiRequest:
    """Return the request that a program would send to the API for the same act, by the same caller."""
    return ApiRequest(
        call.app,
        call.principal,
        method="POST",
        root=call.root,
        path=call.path,
        params=params,
        raw_headers=[(b"content-type", JSON.encode()), (b"host", call.headers.get("host", "").encode())],
        body=body,
        client=call.client,
        scheme=call.scheme,
        now=call.now,
        server_status=call.server_status,
    )
