"""Requests that a browser sends for a page of another origin (CORS)."""

from collections.abc import Sequence

from ..errors import Forbidden
from .http import Answer, Call

Headers = tuple[tuple[bytes, bytes], ...]
SECONDS = b"86400"


class Cross:
    """Which origins may call. Any other page is refused, or it could use a server it cannot see."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._any = "*" in origins
        self._origins = {origin.rstrip("/") for origin in origins}

    def check(self, call: Call) -> Headers:
        """The headers that let a page read the answer; a foreign page is refused."""
        origin = call.header(b"origin")
        if not origin:
            return ()
        if self._any or origin in self._origins:
            allowed = b"*" if self._any else origin.encode("latin-1")
            expose = b"x-request-id, retry-after, www-authenticate"
            return (
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", expose),
                (b"vary", b"origin"),
            )
        if origin == f"{call.scope['scheme']}://{call.header(b'host')}" or _behind(call, origin):
            return ()
        raise Forbidden(
            "pages of this origin may not call; start the server with --cors-origin", origin=origin
        )

    def options(self, allow: str, cross: Headers) -> Answer:
        """The answer to OPTIONS: what a path takes, and to whom it is allowed."""
        allow += ", OPTIONS"
        headers: Headers = ((b"allow", allow.encode()), *cross)
        if cross:
            headers += (
                (b"access-control-allow-methods", allow.encode()),
                (
                    b"access-control-allow-headers",
                    b"authorization, content-type, accept, x-request-id",
                ),
                (b"access-control-max-age", SECONDS),
            )
        return Answer(204, headers=headers)


def _behind(call: Call, origin: str) -> bool:
    """A proxy that ends TLS leaves the scheme of its own connection."""
    return origin == f"https://{call.header(b'host')}"
