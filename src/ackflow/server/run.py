"""Starting and stopping the server: sockets, TLS, signals."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from msgspec import Struct

from .. import validate
from ..errors import AckflowError
from ..options import Counting
from ..session.connect import connect
from ..session.session import Session
from . import logs
from .app import Limits, Server
from .cors import Cors
from .data_dir import data_file
from .limits import LimitedProtocol, ReadTimeout
from .request_log import LogSettings, RequestLog
from .routes import all_routes

DEFAULT_PORT = 8000


class CannotServe(AckflowError):
    """The server cannot start."""

    code = "cannot_serve"


class Config(Struct, kw_only=True):
    """Settings of `ackflow serve`. Without `db`, the file in the user's data directory."""

    db: str | None = None
    host: str = "127.0.0.1"
    ports: Sequence[int] = (DEFAULT_PORT,)
    tls_cert: str | None = None
    tls_key: str | None = None
    limits: Limits = Limits()
    request_log: LogSettings = LogSettings()
    cors_origins: Sequence[str] = ()
    require_token: bool = False
    allow_open: bool = False
    read_seconds: float = 60.0
    queen_retry_limit: Counting = "failures"
    log_format: logs.Format = "text"
    log_level: str = "info"


def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then finish the running requests and return."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise CannotServe("TLS needs both --tls-cert and --tls-key")
    path = config.db or data_file()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listen(config.host, port)) for port in config.ports]
        listener = logs.start(config.log_format, config.log_level)
        stack.callback(listener.stop)
        asyncio.run(_serve(config, path, sockets))


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. Head and body of a response are two small packets, and the
    # second must not wait until the first is acknowledged.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OverflowError:
        sock.close()
        raise CannotServe(f"a port must be an integer from 0 to 65535, got {port}") from None
    except OSError as error:
        sock.close()
        raise CannotServe(_listen_error(host, port, error)) from None
    return sock


def _listen_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use; stop the process that uses it or give another --port"
        )
    if error.errno == errno.EACCES:
        return f"no permission to listen on port {port}; give a --port of 1024 or higher"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


async def _serve(config: Config, path: str, sockets: list[socket.socket]) -> None:
    session = connect(path, consumer="server")
    try:
        app = _application(config, session, sockets)
        server = _Uvicorn(app, _settings(app, config))
        scheme = "https" if config.tls_cert else "http"
        for sock in sockets:
            host, port = sock.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"ackflow listens on {scheme}://{shown}:{port}", flush=True)
        database = validate.redact_url(path) if validate.is_url(path) else os.path.abspath(path)
        print(f"ackflow stores its data in {database}", flush=True)
        read_timeout = ReadTimeout(server.server_state.connections, config.read_seconds)
        polling = asyncio.create_task(read_timeout.run())
        try:
            await server.serve(sockets)
        finally:
            polling.cancel()
            app.onloop.close()
    finally:
        session.close()


def _application(config: Config, session: Session, sockets: list[socket.socket]) -> Server:
    exposed = not config.allow_open and not all(map(_loopback, sockets))
    app = Server(
        session, all_routes(), config.limits,
        require_token=config.require_token or exposed,
        cors=Cors(config.cors_origins),
        request_log=RequestLog(config.request_log),
        retry_limit_counts=config.queen_retry_limit,
    )  # fmt: skip
    if exposed and not config.require_token and not app.auth.has_tokens():
        raise CannotServe(
            f"{config.host} is reachable from other machines and the database has no token; create "
            "one with `ackflow token create`, or give --allow-open to serve without authentication"
        )
    return app


def _loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _settings(app: Server, config: Config) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
    )
    try:
        settings.load()
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(_tls_error(config, error)) from None
    return settings


def _tls_error(config: Config, error: Exception) -> str:
    """Name the file that is wrong; the exception does not say which of the two it is."""
    files = (
        ("--tls-cert", config.tls_cert or "", "CERTIFICATE"),
        ("--tls-key", config.tls_key or "", "PRIVATE KEY"),
    )
    for option, path, what in files:
        try:
            content = Path(path).read_bytes()
        except OSError as wrong:
            return f"{option} {path} cannot be read: {wrong.strerror or wrong}"
        if f"{what}-----".encode() not in content:
            return f"{option} {path} cannot be read: it contains no {what} in PEM format"
    return f"cannot use {config.tls_cert} with {config.tls_key} for TLS: {error}"


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that ends waiting pops on SIGTERM and then exits with code 0."""

    def __init__(self, app: Server, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._stop)
        try:
            yield
        finally:
            for sign in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(sign)

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._app.close()
