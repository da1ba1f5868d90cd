"""Bytes over a socket, for requests that no HTTP client sends."""

import socket
from urllib.parse import urlsplit


def exchange(url: str, *parts: bytes, timeout: float = 5.0) -> bytes:
    """Send bytes and return the first response."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout) as sock:
        for part in parts:
            sock.sendall(part)
        return response(sock)


def response(sock: socket.socket) -> bytes:
    """Read one response with its body and no byte more; less if the server closes before."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return head
        head += byte
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    body = b""
    while len(body) < length:
        data = sock.recv(length - len(body))
        if not data:
            break
        body += data
    return head + body
