"""TLS, with a certificate made for the test."""

import datetime
import ipaddress
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .conftest import free_port


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ackflow test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


def command(tmp_path: Path, *options: object) -> list[str]:
    db = str(tmp_path / "tls.db")
    return [sys.executable, "-m", "ackflow", "serve", "--db", db, *map(str, options)]


def test_it_serves_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    port = free_port()
    line = command(tmp_path, "--port", port, "--tls-cert", cert, "--tls-key", key)
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context) as client:
            _wait_for(client)
            assert client.post("/queue/a/push", json={"item": 1}).status_code == 200
            assert client.post("/queue/a/pop").json()["items"] == [1]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/livez")
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"https://127.0.0.1:{port}/livez")
    finally:
        server.terminate()
        assert server.stdout is not None
        output = server.stdout.read().decode()
        assert server.wait(timeout=30) == 0
        server.stdout.close()
    assert f"listens on https://127.0.0.1:{port}" in output


def _wait_for(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            client.get("/livez")
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def failed(tmp_path: Path, *options: object) -> str:
    line = command(tmp_path, "--port", 0, *options)
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_certificate_needs_its_key(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    assert "needs both" in failed(tmp_path, "--tls-cert", certificate[0])


def test_a_certificate_that_cannot_be_read_is_told_in_one_sentence(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    missing, wrong = tmp_path / "missing.pem", tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    told = failed(tmp_path, "--tls-cert", missing, "--tls-key", key)
    assert f"--tls-cert {missing} cannot be read: No such file" in told
    told = failed(tmp_path, "--tls-cert", wrong, "--tls-key", key)
    assert f"--tls-cert {wrong} cannot be read: it contains no CERTIFICATE in PEM format" in told
    told = failed(tmp_path, "--tls-cert", cert, "--tls-key", wrong)
    assert f"--tls-key {wrong} cannot be read: it contains no PRIVATE KEY in PEM format" in told


def test_a_certificate_that_is_damaged_is_told_with_its_file(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert f"cannot use {cert} with {key} for TLS" in failed(
        tmp_path, "--tls-cert", cert, "--tls-key", key
    )
