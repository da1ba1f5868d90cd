"""Which web pages may call the server: CORS, and the defence against pages that must not.

A browser sends requests of any page to any server that it can reach, also to one on the visitor's
own machine, and DNS rebinding lets a page use its own name for that server.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from ..errors import Forbidden
from .http import Call, Response

Headers = tuple[tuple[bytes, bytes], ...]
MAX_AGE_SECONDS = b"86400"
_KNOWN_HOSTS = 1_000
_is_host = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^][:@/\s]+))(?::[0-9]*)?").fullmatch
_THIS_SITE = (None, b"same-origin", b"none")  # of Sec-Fetch-Site; none: the address bar


class Cors:
    """The allowed origins and host names.

    Requests from pages of any other origin are rejected. `hosts` are names in the Host header that
    are accepted beside those of this machine when no token is required; None accepts any.
    """

    def __init__(self, origins: Sequence[str] = (), hosts: Iterable[str] | None = ()) -> None:
        self._any = "*" in origins
        self._origins = {origin.rstrip("/").encode("latin-1", "replace") for origin in origins}
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._known_hosts: set[bytes] = set()

    def check(self, call: Call, token_required: bool) -> Headers:
        """The CORS headers of the response; raises Forbidden for a page that is not allowed."""
        headers = call.headers
        if not token_required:
            self._check_host(headers.get(b"host", b""))
        origin = headers.get(b"origin")
        if origin is None:
            if headers.get(b"sec-fetch-site") not in _THIS_SITE and not _opens_page(call):
                raise Forbidden("requests from pages of other sites are not allowed")
            return ()
        if self._any or origin in self._origins:
            expose = b"x-request-id, retry-after, www-authenticate"
            return (
                (b"access-control-allow-origin", b"*" if self._any else origin),
                (b"access-control-expose-headers", expose),
                (b"vary", b"origin"),
            )
        if _same_origin(call, origin) and headers.get(b"sec-fetch-site") in _THIS_SITE:
            return ()
        raise Forbidden(
            "requests from this origin are not allowed; start the server with --cors-origin",
            origin=origin.decode("latin-1"),
        )

    def _check_host(self, host: bytes) -> None:
        """Raise Forbidden for a name that a page may have chosen; no token protects this server."""
        if self._hosts is None or not host or host in self._known_hosts:
            return
        name = _host_name(host)
        if not (_is_this_machine(name) or name in self._hosts):
            raise Forbidden(
                "this host name is not allowed without a token; use localhost, or start the server "
                "with --allow-host",
                host=name,
            )
        if len(self._known_hosts) < _KNOWN_HOSTS:
            self._known_hosts.add(host)

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


def _opens_page(call: Call) -> bool:
    """Whether a link of another site opens a page in a window of its own, with nothing secret."""
    headers = call.headers
    return (
        call.method == "GET" and call.route is not None and call.route.role == "open"
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )  # fmt: skip


def _host_name(host: bytes) -> str:
    """The Host header without its port; all of it if it does not have the form of a host."""
    text = host.decode("latin-1").strip().lower()
    found = _is_host(text)
    return text if found is None else found[1] or found[2]


def _is_this_machine(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _same_origin(call: Call, origin: bytes) -> bool:
    # Behind a proxy that terminates TLS, the connection here is not secure and the page is.
    host = call.headers.get(b"host", b"")
    if origin == b"https://" + host:
        return True
    return not call.secure and origin == b"http://" + host
