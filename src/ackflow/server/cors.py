"""Cross-origin resource sharing (CORS): which web pages may call the server."""

from collections.abc import Sequence

from ..errors import Forbidden
from .http import Call, Response

Headers = tuple[tuple[bytes, bytes], ...]
MAX_AGE_SECONDS = b"86400"


class Cors:
    """The allowed origins.

    Requests from pages of any other origin are rejected: without that check a web page could use a
    server that only its visitor can reach.
    """

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._any = "*" in origins
        self._origins = {origin.rstrip("/") for origin in origins}

    def check(self, call: Call) -> Headers:
        """The CORS headers of the response; raises Forbidden for an origin that is not allowed."""
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
        if _same_origin(call, origin):
            return ()
        raise Forbidden(
            "requests from this origin are not allowed; start the server with --cors-origin",
            origin=origin,
        )

    def preflight(self, allow: str, cors_headers: Headers) -> Response:
        """Answer OPTIONS with the methods of a path and, for an allowed origin, the headers."""
        allow += ", OPTIONS"
        headers: Headers = ((b"allow", allow.encode()), *cors_headers)
        if cors_headers:
            headers += (
                (b"access-control-allow-methods", allow.encode()),
                (
                    b"access-control-allow-headers",
                    b"authorization, content-type, accept, x-request-id",
                ),
                (b"access-control-max-age", MAX_AGE_SECONDS),
            )
        return Response(204, headers=headers)


def _same_origin(call: Call, origin: str) -> bool:
    # Behind a proxy that terminates TLS, the scheme here is that of the proxy's own connection.
    host = call.header(b"host")
    return origin in (f"{call.scope['scheme']}://{host}", f"https://{host}")
