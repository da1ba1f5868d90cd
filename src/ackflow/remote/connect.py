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
    tls: dict[str, Any] = {} if ca_file is None else {"ca_certs": os.fspath(ca_file)}
    transport = ThreadTransport(bases(url), authorization(token), retry or RetryPolicy(), **tls)
    return RemoteBroker(transport, clock)


def remote_on_loop(
    url: str,
    token: str | None,
    ca_file: str | os.PathLike[str] | None,
    retry: RetryPolicy | None,
    clock: Clock | None,
) -> RemoteBroker:
    """The same for asyncio: call its methods through `transport_asyncio.spawn`."""
    context = True if ca_file is None else ssl.create_default_context(cafile=os.fspath(ca_file))
    transport = AsyncioTransport(bases(url), authorization(token), retry or RetryPolicy(), context)
    return RemoteBroker(transport, clock)


def authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    return {"authorization": f"Bearer {validate.name(token, 'token')}"}
