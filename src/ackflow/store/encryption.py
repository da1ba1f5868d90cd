"""Encryption at rest: AES-256-GCM, with a key from the environment.

What is sealed is stored as the id of the key (4 bytes), a random nonce (12), ciphertext and tag. The
associated data is the place of the data: its kind and the stable key of its row. Data that was moved
to another place cannot be opened there.

    body of a segment     StoredRest.sealed = BOUND   lane, first sequence, offsets, optional fields
    body of a stage       StoredRest.sealed = STAGED  stage, piece, offsets, optional fields
    payload of a letter   StoredRest.sealed = BOUND   group, lane, sequence, optional fields
    a text                MARK and base64             its row
    other bytes           MARK_BYTE                   its row

A published stage keeps its body; a sealed note in the row of the segment names the stage and piece.
Older versions wrote bodies without associated data (StoredRest.sealed = True): these still open, and
`ackflow keys rotate` binds them. Transaction ids and headers are not encrypted, because they are
looked up. Several keys may be given, separated by commas: the first encrypts, all of them decrypt.
"""

import base64
import binascii
import hashlib
import os
import re
from functools import cache
from typing import Any, NamedTuple

from msgspec import msgpack

from ..errors import NoEncryptionKey, PayloadSealed

VARIABLES = ("ACKFLOW_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY")
ID, NONCE = 4, 12
LOOSE, BOUND, STAGED = 1, 2, 3  # values of StoredRest.sealed; LOOSE is stored as True
MARK = "\x01"  # begins a sealed text; "\x01=" begins another text that begins with MARK
MARK_BYTE = b"\x01"  # begins sealed bytes; no JSON begins with it
_PLAIN = "="

Place = tuple[str | int | bytes | None, ...]
_encode = msgpack.Encoder().encode


class Keys(NamedTuple):
    """Ciphers by key id; `first` is the id of the key that encrypts."""

    first: bytes
    ciphers: dict[bytes, Any]


class SealedText(str):
    """A text that could not be opened, as it is stored; written back unchanged."""

    __slots__ = ()


def check_key() -> None:
    """Raise NoEncryptionKey when no key is set."""
    _keys()


def first_key() -> bytes:
    """Return the id of the key that encrypts."""
    return _keys().first


def given_keys() -> list[bytes]:
    """Return the ids of the keys that are given, the one that encrypts first."""
    try:
        return list(_keys().ciphers)
    except NoEncryptionKey:
        return []


def seal(data: bytes, place: Place) -> bytes:
    """Encrypt bytes for one place."""
    try:
        keys = _keys()
    except NoEncryptionKey as error:
        # Not a refusal: by now the verb may have written something.
        raise PayloadSealed(f"nothing can be written to an encrypted queue: {error}") from None
    nonce = os.urandom(NONCE)
    sealed: bytes = keys.ciphers[keys.first].encrypt(nonce, data, _encode(place))
    return keys.first + nonce + sealed


def unseal(data: bytes, place: Place | None) -> bytes:
    """Decrypt bytes that were sealed for a place; None: by an older version, for no place."""
    from cryptography.exceptions import InvalidTag

    try:
        cipher = _keys().ciphers.get(bytes(data[:ID]))
    except NoEncryptionKey as error:
        raise PayloadSealed(f"the payload is encrypted: {error}") from None
    if cipher is None:
        raise PayloadSealed("the payload is encrypted with another key than the one given")
    bound = None if place is None else _encode(place)
    try:
        opened: bytes = cipher.decrypt(data[ID : ID + NONCE], data[ID + NONCE :], bound)
    except (InvalidTag, ValueError):
        raise PayloadSealed("the payload was changed or moved since it was encrypted") from None
    return opened


def seal_text(text: str | None, place: Place | None) -> str | None:
    """Return the column of a text: sealed for a place, or unsealed if the place is None."""
    if text is None:
        return None
    if isinstance(text, SealedText):
        return str(text)
    if place is not None:
        return MARK + base64.b64encode(seal(text.encode("utf-8", "surrogatepass"), place)).decode()
    return MARK + _PLAIN + text if text.startswith(MARK) else text


def unseal_text(stored: str | None, place: Place) -> str | None:
    """Return a text from its column; raises if it is sealed and cannot be opened."""
    if stored is None or not stored.startswith(MARK):
        return stored
    if stored.startswith(_PLAIN, 1):
        return stored[2:]
    try:
        data = base64.b64decode(stored[1:], validate=True)
    except (binascii.Error, ValueError):
        return stored  # written by an older version, which did not mark such texts
    return unseal(data, place).decode("utf-8", "surrogatepass")


def unseal_text_or_keep(stored: str | None, place: Place) -> str | None:
    """Like `unseal_text`, but what cannot be opened is returned as a SealedText."""
    if stored is None or not stored.startswith(MARK):
        return stored
    try:
        return unseal_text(stored, place)
    except PayloadSealed:
        return SealedText(stored)


def seal_bytes(data: bytes, place: Place) -> bytes:
    """Seal JSON in a column that also holds unsealed JSON."""
    return MARK_BYTE + seal(data, place)


def unseal_bytes(stored: bytes, place: Place) -> bytes:
    """Return JSON from a column in which it may be sealed."""
    return unseal(stored[1:], place) if stored[:1] == MARK_BYTE else stored


def _keys() -> Keys:
    for name in VARIABLES:
        if given := os.environ.get(name):
            return _read(name, given)
    raise NoEncryptionKey()


@cache
def _read(name: str, given: str) -> Keys:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise NoEncryptionKey(
            "encryption needs more: pip install ackflow[server] (cryptography is missing)"
        ) from None
    ciphers: dict[bytes, Any] = {}
    for text in given.split(","):
        if not re.fullmatch("[0-9a-fA-F]{64}", text.strip()):
            raise NoEncryptionKey(f"{name} must be a key of 64 hexadecimal digits")
        key = bytes.fromhex(text.strip())
        ciphers[hashlib.blake2b(key, digest_size=ID).digest()] = AESGCM(key)
    return Keys(next(iter(ciphers)), ciphers)
