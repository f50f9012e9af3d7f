"""HttpCall: an HTTP request described as data, and the making of the request, which reads the secrets at that
moment.
"""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
from msgspec import Struct, structs

from ..clock import system_clock
from ..errors import Misuse
from ..secret import Env
from .base import first_attempt_at, outgoing_headers, preparing
from .http_client import HttpAnswer, HttpRequest, guarded_client, shared_client
from .providers import Provider

__all__ = ["EFFECT_KEY_HEADER", "KEY", "Auth", "HttpCall", "answer_of", "at_path", "read_url"]


KEY = "{effect_key}"  # stands for the effect key in a URL, in parameters, headers and bodies
EFFECT_KEY_HEADER = "Twiceproof-Effect-Key"
Token = Env | Callable[[], str]
Auth = Token | tuple[str, Token]

# Names of headers and parameters whose values are not described.
_SECRET = re.compile(r"auth|cookie|token|secret|passw|credential|signature|api[-_]?key|access[-_]?key|\bkey\b", re.I)
SHORTEST_SECRET = 6
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SAFE_IN_URL = "/:?#[]@!$&'()*+,;=%~{}"


class HttpCall(Struct, frozen=True):
    """One request as it is described. Nothing is sent, and no secret is read, before `request`."""

    method: str
    url: str
    json: Any = msgspec.UNSET
    form: Mapping[str, Any] | None = None
    content: bytes | str | None = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, Any] = {}
    auth: Any = None
    timeout: float = 30.0
    client: Any = None
    untrusted: bool = False
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        read_url(self.url)
        if sum(given is not None for given in (_set(self.json), self.form, self.content)) > 1:
            raise Misuse("A request has one body; give json=, form= or content=, and not two of them.")
        _refuse_auth(self.auth)
        for name in self.headers:
            if not _NAME.fullmatch(name):
                raise Misuse(f"{name[:60]!r} is not the name of a header; write it with letters, digits and -.")

    def __repr__(self) -> str:
        return f"HttpCall({self.name})"

    @property
    def name(self) -> str:
        parts = urlsplit(self.url)
        return f"{self.method} {parts.netloc}{parts.path}"

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def is_conditional(self) -> bool:
        """Whether a repeat is refused if the first request was carried out."""
        return any(name.lower() in ("if-match", "if-none-match") for name in self.headers)

    def describe(self) -> dict[str, Any]:
        """Return the request without its secrets, which are neither compared nor stored."""
        query = self.url.partition("?")[2].split("&")
        shown = {
            "method": self.method,
            "url": self.url.partition("?")[0],
            "query": [part for part in query if part and not _SECRET.search(part.partition("=")[0])],
            "params": _open_values(self.params or {}),
            "headers": _open_values(self.headers),
            "body": _described_body(self),
        }
        return {name: value for name, value in shown.items() if value not in ([], {}, None)}

    def secrets(self) -> list[str]:
        """Return the current value of every secret of this call, to remove them from texts that are stored: of
        `env(…)`, and of what is not described for its name."""
        given = [*self.headers.values(), *(self.params or {}).values(), self.json, self.form]
        found = [secret for value in given for env in _envs(value) for secret in env()]
        query = [part.partition("=")[::2] for part in self.url.partition("?")[2].split("&")]
        named = [
            *self.headers.items(),
            *(self.params or {}).items(),
            *((name, unquote(value)) for name, value in query),
        ]
        found += [str(value) for name, value in named if not isinstance(value, Env) and _is_credential(name, value)]
        token = self.auth[1] if isinstance(self.auth, tuple) else self.auth
        return found + (list(token()) if isinstance(token, Env) else [])

    def request(self, effect_key: str, provider: Provider | None = None) -> HttpRequest:
        """Make the request, with the key where the provider expects it, and where people find it at the target."""
        with preparing(self.name):
            return self._request(effect_key, provider)

    def _request(self, effect_key: str, provider: Provider | None) -> HttpRequest:
        call = _carrying(self, effect_key, provider) if provider is not None else self
        body, kind = _body(call, effect_key)
        url = _filled(call.url, effect_key)
        if call.params:
            query = urlencode([*_pairs({name: _value(one, effect_key) for name, one in call.params.items()})])
            url += ("&" if "?" in url else "?") + query
        given = {name: _value(value, effect_key) for name, value in call.headers.items()}
        added = {**outgoing_headers.get(), **kind, **_authorization(call.auth)}
        if call.method not in ("GET", "HEAD"):
            added[EFFECT_KEY_HEADER] = effect_key
        return HttpRequest(call.method, _quoted(url), _merged(added, given), body, call.timeout)

    def send(self, effect_key: str, provider: Provider | None = None) -> HttpAnswer:
        return self.transmit(self.request(effect_key, provider))

    def transmit(self, request: HttpRequest) -> HttpAnswer:
        """Send one request as this call says: by the user's client, by the guarded one, or over the process's
        connections.
        """
        if self.client is not None:
            return _by_client(self.client, request)
        return (guarded_client(self.allow) if self.untrusted else shared_client()).send(request)

    def reading(self, url: str, headers: Mapping[str, Any] | None = None) -> HttpCall:
        """Return a GET with this call's authorization and client, to read from the same API."""
        given = {
            name: value for name, value in self.headers.items() if not name.lower().startswith(("if-", "content-"))
        }
        bare = structs.replace(self, method="GET", url=url, params=None, form=None, content=None)
        return structs.replace(bare, json=msgspec.UNSET, headers={**given, **(headers or {})})


def read_url(url: object) -> str:
    """Refuse relative URLs, and those with a password, which would be logged and stored."""
    if not isinstance(url, str) or any(letter <= " " or letter == "\x7f" for letter in url):
        raise Misuse("A URL is one text without spaces; write it as https://HOST/PATH.")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a wrong one
    except ValueError:
        raise Misuse("A URL cannot be read; write it as https://HOST/PATH.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misuse(f"{url.partition('?')[0][:100]!r} is not an absolute URL; write it as https://HOST/PATH.")
    if "@" in parts.netloc or parts.fragment:
        raise Misuse('A URL has no user name, password or fragment here; write auth=("user", env("PASSWORD")).')
    return url


def at_path(value: Any, path: str) -> Any:
    """Return what is at `items[0].id` in decoded JSON. Raises LookupError where there is nothing."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if name and not isinstance(value, Mapping):
            raise LookupError(f"nothing is at {path}")
        if number and not isinstance(value, list):
            raise LookupError(f"{path} is not in a list")
        value = value[name] if name else value[int(number)]
    return value


def answer_of(answer: HttpAnswer) -> Any:
    """Decode a body by its content type: JSON, text, or None if it is empty. Raises ValueError for invalid JSON."""
    if not answer.body:
        return None
    kind, _, rest = answer.headers.get("content-type", "").partition(";")
    if kind.strip().lower().endswith(("/json", "+json")):
        return msgspec.json.decode(answer.body)
    charset = re.search(r"charset=\"?([\w.:-]+)", rest)
    try:
        return answer.body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        return answer.body.decode("utf-8", "replace")


# -- the parts of a request ----------------------------------------------------------------------


def _set(value: Any) -> Any:
    return None if value is msgspec.UNSET else (value,)


def _refuse_auth(auth: object) -> None:
    token = auth[1] if isinstance(auth, tuple) and len(auth) == 2 else auth
    if token is not None and not isinstance(token, Env) and not callable(token):
        # The value is not repeated: it may be the secret itself.
        raise Misuse('auth= takes env("NAME"), ("user", env("NAME")) or a function that returns a token, not a value.')


def _token(given: Token) -> str:
    return given.values()[0] if isinstance(given, Env) else given()


def _authorization(auth: Auth | None) -> dict[str, str]:
    if auth is None:
        return {}
    if isinstance(auth, tuple):
        pair = f"{auth[0]}:{_token(auth[1])}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    return {"Authorization": f"Bearer {_token(auth)}"}


def _merged(added: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Merge headers; the user's win, and names are compared without case. A line break is refused: it would begin
    another header.
    """
    own = {name.lower() for name in given}
    merged = {**{name: value for name, value in added.items() if name.lower() not in own}, **given}
    for name, value in merged.items():
        if any(letter in value for letter in "\r\n\0"):
            raise Misuse(f"The header {name} has a line break in its value; take it out.")
        if any(letter > "\xff" for letter in value):
            raise Misuse(f"The header {name} has letters that HTTP headers cannot carry; percent-encode its value.")
    return merged


def _filled(text: str, effect_key: str) -> str:
    return text.replace(KEY, effect_key)


def _value(value: Any, effect_key: str) -> str:
    if isinstance(value, Env):
        return value.values()[0]
    return _filled(value, effect_key) if isinstance(value, str) else str(value)


def _quoted(url: str) -> str:
    return quote(url, safe=_SAFE_IN_URL)


def _carrying(call: HttpCall, effect_key: str, provider: Provider) -> HttpCall:
    """Return the call with the key where the provider expects it, and in a field of the body that its web pages
    show.
    """
    if not provider.covers(call.method, urlsplit(call.url).path):
        return call
    key = provider.key(effect_key)
    if provider.mark and call.form is not None:
        call = structs.replace(call, form={provider.mark: effect_key, **call.form})
    match provider.place:
        case "header":
            return structs.replace(call, headers={**call.headers, provider.field: key, **_first_sent(provider)})
        case "query":
            return structs.replace(call, params={**(call.params or {}), provider.field: key})
        case "body":
            return _with_field(call, provider.field.split("."), key)
    return call


def _first_sent(provider: Provider) -> dict[str, str]:
    """Return the header for the time of the first attempt. The provider refuses a repeat that is older than its
    memory.
    """
    if not provider.first_sent:
        return {}
    began = first_attempt_at.get()
    return {provider.first_sent: formatdate(system_clock.now() if began is None else began, usegmt=True)}


def _with_field(call: HttpCall, path: Sequence[str], key: str) -> HttpCall:
    name = "form" if call.form is not None else "json"
    body = call.form if call.form is not None else call.json
    if body is msgspec.UNSET or not isinstance(body, Mapping):
        raise Misuse(f"The key goes into {'.'.join(path)} of the body; give json={{…}}.")
    return structs.replace(call, **{name: _placed(body, path, key)})


def _placed(body: Mapping[str, Any], path: Sequence[str], key: str) -> dict[str, Any]:
    inner = body.get(path[0])
    below = _placed(inner if isinstance(inner, Mapping) else {}, path[1:], key) if path[1:] else key
    return {**body, path[0]: below}


def _body(call: HttpCall, effect_key: str) -> tuple[bytes, dict[str, str]]:
    if call.content is not None:
        return (call.content.encode() if isinstance(call.content, str) else bytes(call.content)), {}
    if call.form is not None:
        text = urlencode([*_pairs(_keyed(call.form, effect_key))])
        return text.encode(), {"Content-Type": "application/x-www-form-urlencoded"}
    if call.json is not msgspec.UNSET:
        return msgspec.json.encode(_keyed(call.json, effect_key)), {"Content-Type": "application/json"}
    return b"", {}


def _keyed(value: Any, effect_key: str) -> Any:
    """Replace `KEY` by the effect key, and secrets by their values. Values that are not plain JSON are left to the
    encoder.
    """
    if isinstance(value, str | Env):
        return _value(value, effect_key)
    if isinstance(value, Mapping):
        return {name: _keyed(inner, effect_key) for name, inner in value.items()}
    return [_keyed(inner, effect_key) for inner in value] if isinstance(value, list | tuple) else value


def _pairs(fields: Mapping[str, Any], stem: str = "") -> Iterator[tuple[str, str]]:
    """Fields of a form: `a[b]` for a mapping, `a[0][b]` for mappings in a list, the name again for other lists."""
    for name, value in fields.items():
        full = f"{stem}[{name}]" if stem else name
        if isinstance(value, Mapping):
            yield from _pairs(value, full)
        elif isinstance(value, list | tuple):
            for number, one in enumerate(value):
                yield from _pairs(one, f"{full}[{number}]") if isinstance(one, Mapping) else [(full, _word(one))]
        elif value is not None:
            yield full, _word(value)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_credential(name: str, value: object) -> bool:
    """A short word, such as a version, is none; neither is the effect key, by which an error is understood."""
    text = str(value)
    return bool(_SECRET.search(name.replace("_", "-"))) and len(text) >= SHORTEST_SECRET and KEY not in text


def _open_values(given: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in given.items()
        if not isinstance(value, Env) and not _SECRET.search(name.replace("_", "-"))
    }


def _described_body(call: HttpCall) -> Any:
    if call.content is not None:
        content = call.content.encode() if isinstance(call.content, str) else bytes(call.content)
        return blake2b(content, digest_size=16).hexdigest()
    return _masked(dict(call.form) if call.form is not None else None if call.json is msgspec.UNSET else call.json)


def _masked(value: Any) -> Any:
    """Return a body without the secrets in it."""
    if isinstance(value, Mapping):
        return {name: _masked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner) for inner in value]
    return "***" if isinstance(value, Env) else value


def _envs(value: Any) -> Iterator[Env]:
    """Return the secrets in a value, at any depth."""
    if isinstance(value, Env):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _envs(inner)


def _by_client(client: Any, request: HttpRequest) -> HttpAnswer:
    """Send it by the user's own client: anything with a `request` like that of httpx or requests."""
    known = inspect.signature(client.request).parameters
    body = "content" if "content" in known else "data"
    given = {body: request.body, "headers": dict(request.headers), "timeout": request.timeout}
    redirects = next((name for name in ("follow_redirects", "allow_redirects") if name in known), None)
    answer = client.request(request.method, request.url, **given, **({redirects: False} if redirects else {}))
    if inspect.iscoroutine(answer):
        answer.close()
        raise Misuse("client= must block; give an httpx2.Client or a requests.Session, not an asynchronous one.")
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    return HttpAnswer(int(answer.status_code), headers, bytes(answer.content))
