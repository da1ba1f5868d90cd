"""The encoding of answers."""

import msgspec
import pytest

from ackflow.remote import wire


@pytest.mark.parametrize("length", [0, 1, 256, 257, 512, 520, 528, 70_000])
@pytest.mark.parametrize("encoding", [wire.JSON, wire.MSGPACK])
def test_a_long_list_that_is_encoded_in_parts_means_the_same(length: int, encoding: str) -> None:
    values = [[n, str(n)] for n in range(length)]
    packed = wire.write_in_parts(values, encoding)
    decode = msgspec.json.decode if encoding == wire.JSON else msgspec.msgpack.decode
    assert decode(packed) == values
