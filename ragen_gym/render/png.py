"""PNG files of pictures, written and read without an image library: eight bits, red, green and blue, not interlaced."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from ragen_gym.render.canvas import Pixels

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_UP = 2  # each line is written as its difference to the line above: a tile's lines are much alike


def encode_png(picture: Pixels) -> bytes:
    """A PNG file of a picture, uint8 (height, width, 3); the same bytes for the same picture and version of zlib."""
    height, width, _ = picture.shape
    lines = np.empty((height, 1 + 3 * width), np.uint8)
    lines[:, 0] = _UP
    flat = picture.reshape(height, -1)
    lines[0, 1:] = flat[0]
    np.subtract(flat[1:], flat[:-1], out=lines[1:, 1:])
    header = _HEADER.pack(width, height, 8, 2, 0, 0, 0)
    return (
        _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)) + _chunk(b"IEND", b"")
    )


def decode_png(data: bytes, shape: tuple[int, ...]) -> Pixels:
    """The picture of a file that ``encode_png`` wrote, uint8 of ``shape``.

    Never unpacks more than a picture of that shape.

    Raises:
        ValueError: it is damaged, of another shape, or of a kind that ``encode_png`` does not write.
    """
    height, width, _ = shape
    chunks = _chunks(data)
    if chunks.get(b"IHDR") != _HEADER.pack(width, height, 8, 2, 0, 0, 0):
        raise ValueError(f"a PNG is not of {height} x {width} pixels in red, green and blue of eight bits.")
    unpack = zlib.decompressobj()
    size = height * (1 + 3 * width)
    try:
        raw = unpack.decompress(chunks.get(b"IDAT", b""), size + 1)
    except zlib.error as error:
        raise ValueError(f"a PNG is damaged: {error}.") from None
    if len(raw) != size or not unpack.eof:
        raise ValueError(f"a PNG is damaged: it holds {len(raw)} bytes of pixels where {size} are due.")
    lines = np.frombuffer(raw, np.uint8).reshape(height, -1)
    if (lines[:, 0] != _UP).any():
        raise ValueError("a PNG is of a kind that is not read here: read it with an image library.")
    picture: Pixels = np.add.accumulate(lines[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 3)
    return picture


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """The chunks of a file by kind, those of one kind joined.

    Raises:
        ValueError: it is no PNG, is cut off, or a checksum is wrong.
    """
    if not data.startswith(_SIGNATURE):
        raise ValueError("this is no PNG: it does not begin as one.")
    found: dict[bytes, bytes] = {}
    at = len(_SIGNATURE)
    while b"IEND" not in found:
        if at + 12 > len(data):
            raise ValueError("a PNG is damaged: it is cut off.")
        (length,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        content, check = data[at + 8 : at + 8 + length], data[at + 8 + length : at + 12 + length]
        if len(check) != 4 or struct.unpack(">I", check)[0] != zlib.crc32(kind + content):
            raise ValueError("a PNG is damaged: a checksum does not fit its content.")
        found[kind] = found.get(kind, b"") + content
        at += 12 + length
    return found
