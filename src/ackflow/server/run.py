"""Starting and stopping the server: sockets, TLS, signals."""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop
from msgspec import Struct, structs

from .. import validate
from ..broker.sharded.broker import ShardedBroker
from ..errors import AckflowError
from ..options import Counting
from ..session.connect import connect
from ..session.session import Session
from . import logs
from .app import Server
from .connection import Connection, check_future_protocol
from .console.ui import UiSettings
from .cors import Cors
from .data_dir import data_file
from .limits import Limits
from .listener import Connections, Listener
from .request_log import LogSettings, RequestLog
from .routes import all_routes

DEFAULT_PORT = 8000
CLOSE_SECONDS = 30.0
SWITCH_SECONDS = 0.0005
GC_THRESHOLDS = 20_000, 20, 50
OWN_DESCRIPTORS = 128  # for the database, the log and the listening sockets

log = logging.getLogger("ackflow.server")


class CannotServe(AckflowError):
    """The server cannot start."""

    code = "cannot_serve"


class Config(Struct, kw_only=True):
    """Settings of `ackflow serve`. Without `db`, the file in the user's data directory."""

    db: str | None = None
    host: str = "127.0.0.1"
    ports: Sequence[int] = (DEFAULT_PORT,)
    amqp_ports: Sequence[int] = ()
    amqp_tls_ports: Sequence[int] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    limits: Limits = Limits()
    request_log: LogSettings = LogSettings()
    cors_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    require_token: bool = False
    allow_open: bool = False
    queen_retry_limit: Counting = "failures"
    ui: UiSettings = UiSettings()
    log_format: logs.Format = "text"
    log_level: str = "info"


class Sockets(NamedTuple):
    """The listening sockets, by what is spoken there."""

    http: list[socket.socket]
    amqp: list[socket.socket]
    amqp_tls: list[socket.socket]

    def urls(self, secure: bool) -> Iterator[str]:
        """The addresses, as URLs."""
        schemes = ("https" if secure else "http", "amqp", "amqps")
        for scheme, sockets in zip(schemes, self, strict=True):
            for sock in sockets:
                host, port = sock.getsockname()[:2]
                yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then finish the running requests and return."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise CannotServe("TLS needs both --tls-cert and --tls-key")
    if config.amqp_tls_ports and not config.tls_cert:
        raise CannotServe("--amqp-tls-port needs --tls-cert and --tls-key")
    path = config.db or data_file()
    with contextlib.ExitStack() as stack:
        sockets = Sockets(
            *(
                [stack.enter_context(listen(config.host, port)) for port in ports]
                for ports in (config.ports, config.amqp_ports, config.amqp_tls_ports)
            )
        )
        listener = logs.start(config.log_format, config.log_level)
        stack.callback(listener.stop)
        # The loop and the writer wait for each other's interpreter lock; 5 ms, the default, is long.
        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, path, sockets))


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it: the next response must not wait for the client's TCP ack.
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


async def _serve(config: Config, path: str, sockets: Sockets) -> None:
    check_future_protocol()
    tls = _tls_context(config, "http/1.1") if config.tls_cert else None
    session = connect(path, consumer="server")
    try:
        config.limits = _within_descriptors(config.limits)
        app = _application(config, session, [sock for some in sockets for sock in some])
        for address in sockets.urls(tls is not None):
            print(f"ackflow listens on {address}", flush=True)
        database = validate.redact_url(path) if validate.is_url(path) else os.path.abspath(path)
        print(f"ackflow stores its data in {database}", flush=True)
        _collect_rarely()
        try:
            await _until_stopped(app, config, sockets, tls)
        finally:
            app.close_threads()
    finally:
        session.close()


def _collect_rarely() -> None:
    """Exempt what exists now from garbage collection, and collect less often.

    Requests leave next to no cycles; collections took 7 % of the CPU of a server of small pushes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _until_stopped(
    app: Server, config: Config, sockets: Sockets, tls: ssl.SSLContext | None
) -> None:
    """Serve until SIGTERM or SIGINT; then finish the running requests, until a second signal."""
    connections = Connections(app.limits)
    listeners = [
        Listener(sock, connections, lambda: Connection(app, connections), tls)
        for sock in sockets.http
    ]
    contexts = [tls] if tls is not None else []
    amqp = None
    if sockets.amqp or sockets.amqp_tls:
        from ..dialects.rabbitmq.protocol import AmqpConnection
        from ..dialects.rabbitmq.server import AmqpServer

        amqp = server = AmqpServer(app)
        amqp_tls = _tls_context(config, None) if sockets.amqp_tls else None
        contexts += [amqp_tls] if amqp_tls is not None else []
        listeners += [
            Listener(sock, connections, lambda: AmqpConnection(server, connections), context)
            for some, context in ((sockets.amqp, None), (sockets.amqp_tls, amqp_tls))
            for sock in some
        ]
    sweeping = asyncio.create_task(connections.sweep())
    stopping, forced = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (forced if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if contexts:
        handlers[signal.SIGHUP] = lambda: _reload_certificate(contexts, config)
    for sign, handler in handlers.items():
        loop.add_signal_handler(sign, handler)
    app.loop_broker.leads = True  # from here on signals raise nothing
    try:
        await stopping.wait()
        for listener in listeners:
            listener.stop()
        app.close()
        await connections.close(CLOSE_SECONDS, forced)
        if amqp is not None:
            await amqp.finished()
        await app.finished()
    finally:
        app.loop_broker.leads = False
        sweeping.cancel()
        for sign in handlers:
            loop.remove_signal_handler(sign)


def _within_descriptors(limits: Limits) -> Limits:
    """Raise the soft limit on open files, and accept no more connections than it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return structs.replace(
            limits, connections=max(1, min(limits.connections, soft - OWN_DESCRIPTORS))
        )
    return limits


def _application(config: Config, session: Session, sockets: list[socket.socket]) -> Server:
    several = isinstance(session.broker, ShardedBroker)
    if several and (config.amqp_ports or config.amqp_tls_ports):
        raise CannotServe(
            "AMQP is served from one database: its exchanges and queues are declared together; start "
            "a server with one of the databases for it"
        )
    local = all(map(_loopback, sockets))
    exposed = not config.allow_open and not local
    # Other machines use names that are not known here; --allow-host restricts them.
    exposed_open = config.allow_open and not local and not config.allowed_hosts
    app = Server(
        session, all_routes(several, config.ui), config.limits,
        require_token=config.require_token or exposed,
        cors=Cors(config.cors_origins, None if exposed_open else config.allowed_hosts),
        request_log=RequestLog(config.request_log),
        retry_limit_counts=config.queen_retry_limit, ui=config.ui,
    )  # fmt: skip
    if exposed and not config.require_token and not app.auth.has_tokens():
        raise CannotServe(
            f"{config.host} is reachable from other machines and the database has no token; create "
            "one with `ackflow token create`, or give --allow-open to serve without authentication"
        )
    return app


def _loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _tls_context(config: Config, protocol: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if protocol is not None:
        context.set_alpn_protocols([protocol])
    _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    assert config.tls_cert is not None
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(_tls_error(config, error)) from None


def _reload_certificate(contexts: Sequence[ssl.SSLContext], config: Config) -> None:
    """Use the certificate as it is on disk now, for new connections."""
    try:
        # A context that fails to load keeps half of it, so it is tried with another one first.
        _load_certificate(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), config)
        for context in contexts:
            _load_certificate(context, config)
        log.info("the TLS certificate is reloaded")
    except CannotServe as error:
        log.error("the TLS certificate was not reloaded: %s", error)


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
