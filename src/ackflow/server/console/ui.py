"""The dashboard at `/ui`: its static files, and the sessions of people who logged in with a token.

A session is a random cookie that scripts cannot read and other sites cannot send; the token itself is
not kept in the browser. It is accepted by the routes of the dashboard only. A request that changes
something must also carry the header `x-ackflow-ui`, which a form or an image cannot set.
"""

import hashlib
import secrets
import time
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar

from msgspec import Struct

from ... import __version__
from ...broker import access_tokens
from ...broker.sampling.live_stats import LiveStats
from ...broker.views.dead_groups import DeadGroups
from ...errors import Forbidden, NotFound, Unauthenticated
from ..http import Call, Response, Route, json
from .masking import Masking
from .tails import Tails

TAG = "dashboard"
COOKIE = "ackflow_session"
HEADER = b"x-ackflow-ui"
IDLE_SECONDS = 8 * 3600.0
MOST_SESSIONS, MOST_OF_TOKEN = 10_000, 100
SPARKS_SECONDS = 15.0
DEAD_SECONDS, DEAD_REST = 60.0, 30.0
MOST_KEPT = 100
T = TypeVar("T")
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
FOLDERS = ("", "pages")


class UiSettings(Struct, frozen=True, kw_only=True):
    """Settings of the dashboard. `prefix` is a path that a proxy in front does not remove."""

    enabled: bool = True
    prefix: str = ""
    read_only: bool = False
    mask: tuple[str, ...] = ()


class Dashboard:
    """The state of the dashboard of one server."""

    def __init__(self, settings: UiSettings | None = None) -> None:
        self.settings = settings or UiSettings()
        self.masking = Masking(self.settings.mask)
        self.sessions = Sessions()
        self.tails = Tails()
        self.kept = Kept()


class Kept:
    """Results that were computed for one viewer and are reused for others while they are valid."""

    def __init__(self) -> None:
        self._of: object = None
        self._derived: dict[str, Any] = {}
        self._sparks: dict[str, list[float]] = {}
        self._sparks_at = 0.0
        self._dead: dict[tuple[object, ...], tuple[DeadGroups, float, float, int]] = {}

    def known(self, snapshot: LiveStats, name: str) -> Any:
        """What was kept of a snapshot; None if there is nothing, or there is a newer snapshot."""
        return self._derived.get(name) if self._of is snapshot else None

    def keep(self, snapshot: LiveStats, name: str, value: T) -> T:
        """Keep something that was read with a snapshot, or follows from it."""
        if self._of is not snapshot:
            self._of, self._derived = snapshot, {}
        self._derived[name] = value
        return value

    def sparks(self) -> dict[str, list[float]]:
        """The sparklines read in the last seconds, by queue; to be added to."""
        now = time.monotonic()
        if now > self._sparks_at + SPARKS_SECONDS:
            self._sparks, self._sparks_at = {}, now
        return self._sparks

    def dead(self, key: tuple[object, ...], snapshot: LiveStats) -> DeadGroups | None:
        """The dead letters by error, as they were counted before: they are counted again if their
        number has changed, but not before `DEAD_REST` times as long as that takes."""
        if key not in self._dead:
            return None
        found, at, took, number = self._dead[key]
        age = time.monotonic() - at
        same = number == _dead_number(snapshot) and age < DEAD_SECONDS
        return found if same or age < DEAD_REST * took else None

    def keep_dead(
        self, key: tuple[object, ...], snapshot: LiveStats, found: DeadGroups, took: float
    ) -> None:
        if len(self._dead) >= MOST_KEPT:
            self._dead.clear()
        self._dead[key] = found, time.monotonic(), took, _dead_number(snapshot)

    def changed(self) -> None:
        """Forget what an action on this server may have changed."""
        self._dead = {}


def _dead_number(snapshot: LiveStats) -> int:
    return snapshot.dead + (snapshot.total[-1] << 32)


class Sessions:
    """The sessions of logged-in users, by the digest of their cookies; they end with the process."""

    def __init__(self) -> None:
        self._known: dict[
            bytes, tuple[bytes, float]
        ] = {}  # digest of the token, end of the session

    def begin(self, token: bytes) -> str:
        """Return the value of a new cookie for the token with this digest."""
        mine = [key for key, (digest, _) in self._known.items() if digest == token]
        if len(mine) >= MOST_OF_TOKEN:  # else one token could end the sessions of all others
            del self._known[mine[0]]
        if len(self._known) >= MOST_SESSIONS:
            now = time.monotonic()
            self._known = {key: one for key, one in self._known.items() if one[1] > now}
            while len(self._known) >= MOST_SESSIONS:
                del self._known[next(iter(self._known))]
        value = secrets.token_urlsafe(32)
        self._known[_digest(value)] = token, time.monotonic() + IDLE_SECONDS
        return value

    def token(self, cookie: str) -> bytes | None:
        """Return the digest of the token of a session, and keep the session alive."""
        key = _digest(cookie)
        found = self._known.get(key)
        if found is None or found[1] < time.monotonic():
            self._known.pop(key, None)
            return None
        self._known[key] = found[0], time.monotonic() + IDLE_SECONDS
        return found[0]

    def end(self, cookie: str) -> None:
        self._known.pop(_digest(cookie), None)


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def cookie_of(call: Call) -> str | None:
    """The session cookie of a request."""
    for part in call.header(b"cookie").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def check_page(call: Call) -> None:
    """Raise Forbidden unless a change comes from a page of this server, or from no page at all."""
    site = call.headers.get(b"sec-fetch-site")
    page = site is not None or b"origin" in call.headers or b"cookie" in call.headers
    if page and (HEADER not in call.headers or site not in (None, b"same-origin")):
        raise Forbidden(
            "a change must come from a page of this server, with the header x-ackflow-ui"
        )


# the session


class LogIn(Struct):
    """A token to log in with."""

    token: str


class SessionInfo(Struct):
    """Who uses the dashboard, and what is possible.

    `role` is the highest on any queue; `login` says whether a token has to be given first.
    """

    login: bool
    name: str
    role: Literal["read-only", "read-write", "admin"]
    grants: list[tuple[str, str]]
    everywhere: bool
    read_only: bool
    masked: bool
    open: bool
    version: str


async def session(call: Call) -> Response:
    """The user of the dashboard. It needs no token, because the login page uses it."""
    server = call.server
    if not server.auth.fresh():
        await server.auth.refresh()
    try:
        server.auth.authenticate(call)
        login = False
    except Unauthenticated:
        login = True
    return json(_info(call, login))


def _info(call: Call, login: bool) -> SessionInfo:
    settings, who = call.server.dashboard.settings, call.who
    info = SessionInfo(login, "", "read-only", [], False, settings.read_only, bool(settings.mask),
                       not call.server.auth.token_required, __version__)  # fmt: skip
    if login:
        return info
    if who is None:
        info.role, info.everywhere = "admin", True
        return info
    info.name = who.name
    info.grants = [(grant.role, grant.pattern) for grant in who.grants]
    info.role = max((grant.role for grant in who.grants), key=access_tokens.RANK.__getitem__)
    info.everywhere = who.may_everywhere("read-only")
    return info


async def log_in(call: Call) -> Response:
    """Begin a session with a token; the answer sets a cookie."""
    server = call.server
    check_page(call)
    if not server.auth.fresh():
        await server.auth.refresh()
    who = server.auth.by_secret(call.json_body(LogIn).token)
    call.who = who
    value = server.dashboard.sessions.begin(who.digest)
    return json(_info(call, False), 200, (b"set-cookie", _set_cookie(call, value)))


async def log_out(call: Call) -> Response:
    """End the session of the cookie."""
    check_page(call)
    cookie = cookie_of(call)
    if cookie is not None:
        call.server.dashboard.sessions.end(cookie)
    return Response(204, headers=((b"set-cookie", _set_cookie(call, "", b"; Max-Age=0")),))


def _set_cookie(call: Call, value: str, more: bytes = b"") -> bytes:
    secure = call.secure or call.header(b"x-forwarded-proto") == "https"
    end = b"; Secure" if secure else b""
    return b"%b=%b; Path=/; HttpOnly; SameSite=Strict%b%b" % (
        COOKIE.encode(), value.encode(), end, more,
    )  # fmt: skip


# static files


@cache
def _files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """The content, type and entity tag of every file, by its path."""
    found = {}
    static = resources.files("ackflow") / "dashboard" / "static"
    for folder in FOLDERS:
        for file in (static / folder if folder else static).iterdir():
            kind = TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                content = file.read_bytes()
                tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
                found[f"{folder}/{file.name}" if folder else file.name] = content, kind, tag
    return found


async def page(call: Call) -> Response:
    """The dashboard. Without a slash at the end, relative links would lead elsewhere."""
    if not call.path.endswith("/"):
        return Response(302, headers=((b"location", b"ui/"),))
    return _file(call, "index.html")


async def file(call: Call) -> Response:
    """A file of the dashboard."""
    parts = (call.params.get("folder"), call.params["file"])
    return _file(call, "/".join(part for part in parts if part))


def _file(call: Call, name: str) -> Response:
    known = _files().get(name)
    if known is None:
        raise NotFound(f"the dashboard has no file {name!r}")
    content, kind, tag = known
    headers = (
        (b"content-security-policy", POLICY),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
    )
    if call.headers.get(b"if-none-match") == tag:
        return Response(304, headers=headers)
    return Response(200, content, kind, headers)


ROUTES = (
    Route("GET", "/ui", page, "open", tag=TAG, summary="The dashboard",
          responses={200: "text/html"}),
    Route("GET", "/ui/{file}", file, "open", tag=TAG, summary="Files of the dashboard",
          responses={200: "*/*"}),
    Route("GET", "/ui/{folder}/{file}", file, "open", tag=TAG, summary="Files of the dashboard",
          responses={200: "*/*"}),
    Route("GET", "/v1/session", session, "open", tag=TAG, summary="Who uses the dashboard",
          responses={200: SessionInfo}),
    Route("POST", "/v1/session", log_in, "open", tag=TAG, summary="Log in with a token",
          body=LogIn, responses={200: SessionInfo}),
    Route("DELETE", "/v1/session", log_out, "open", tag=TAG, summary="Log out",
          responses={204: None}),
)  # fmt: skip
