"""Open a broker behind a server."""

import os
import ssl
from typing import Any

from .. import validate
from ..clock import Clock
from .broker import RemoteBroker
from .protocol import bases
from .retry import RetryPolicy
from .transport_asyncio import AsyncioTransport
from .transport_threads import ThreadTransport


def remote(
    url: str,
    token: str | None,
    ca_file: str | os.PathLike[str] | None,
    retry: RetryPolicy | None,
    clock: Clock | None,
) -> RemoteBroker:
    """Open a broker behind these servers; nothing is sent before the first verb."""
    servers, headers, policy = bases(url), authorization(token), retry or RetryPolicy()
    tls: dict[str, Any] = {} if ca_file is None else {"ca_certs": os.fspath(ca_file)}

    def on_loop() -> AsyncioTransport:
        context = True if ca_file is None else ssl.create_default_context(cafile=os.fspath(ca_file))
        return AsyncioTransport(servers, headers, policy, context)

    return RemoteBroker(ThreadTransport(servers, headers, policy, **tls), clock, on_loop)


def authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    return {"authorization": f"Bearer {validate.name(token, 'token')}"}
