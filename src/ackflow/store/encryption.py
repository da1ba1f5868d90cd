"""Encryption of payloads at rest: AES-256-GCM, with a key from the environment.

A whole body, or the payload of one dead letter, is encrypted: the id of the key (4 bytes), a random
nonce (12), then ciphertext and tag. Transaction ids and headers are not encrypted, because they are
looked up. Several keys may be given, separated by commas: the first encrypts, all of them decrypt.
"""

import hashlib
import os
import re
from functools import cache
from typing import Any, NamedTuple

from ..errors import NoEncryptionKey, PayloadSealed
from .records import Rest, StoredRest

VARIABLES = ("ACKFLOW_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY")
ID, NONCE = 4, 12


class Keys(NamedTuple):
    """Ciphers by key id; `first` is the id of the key that encrypts."""

    first: bytes
    ciphers: dict[bytes, Any]


def check_key() -> None:
    """Raise NoEncryptionKey when no key is set."""
    _keys()


def encrypt(data: bytes, rest: Rest | None) -> tuple[bytes, StoredRest]:
    """Encrypt payload bytes; returns them and the optional fields as they are stored."""
    try:
        keys = _keys()
    except NoEncryptionKey as error:
        # Not a refusal: by now the verb may have written something.
        raise PayloadSealed(f"nothing can be written to an encrypted queue: {error}") from None
    nonce = os.urandom(NONCE)
    sealed = keys.first + nonce + keys.ciphers[keys.first].encrypt(nonce, data, None)
    rest = rest or Rest()
    return sealed, StoredRest(rest.txids, rest.headers, rest.binary, sealed=True)


def decrypt(data: bytes, rest: StoredRest | None) -> tuple[bytes, Rest | None]:
    """Decrypt payload bytes; returns them and the optional fields as they were pushed."""
    if rest is None or not rest.sealed:
        return data, rest
    from cryptography.exceptions import InvalidTag

    plain = Rest(rest.txids, rest.headers, rest.binary)
    beside = None if plain.empty else plain
    try:
        cipher = _keys().ciphers.get(data[:ID])
    except NoEncryptionKey as error:
        raise PayloadSealed(f"the payload is encrypted: {error}") from None
    if cipher is None:
        raise PayloadSealed("the payload is encrypted with another key than the one given")
    try:
        return cipher.decrypt(data[ID : ID + NONCE], data[ID + NONCE :], None), beside
    except InvalidTag:
        raise PayloadSealed("the payload was changed since it was encrypted") from None


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
