"""A gzipped file, read forward."""

import os
import zlib
from pathlib import Path

RAW_BYTES = 64 << 10

_GZIP = 16 + zlib.MAX_WBITS  # the format that zlib is to expect (zlib.h, inflateInit2)


class Gunzip:
    """A place in a gzipped file that moves forward; `offset` counts unzipped bytes. Blocking.

    No descriptor is held between reads: the file may be removed, and many may be open. What is damaged or cut off
    counts as the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._raw_offset = 0
        self._zip = zlib.decompressobj(_GZIP)
        self._is_at_end = False

    def read(self, bytes_max: int) -> bytes:
        """The next bytes; b"" at the end. Raises OSError."""
        with open(self.path, "rb", buffering=0) as file:
            data = b""
            while not data and not self._is_at_end:
                data = self._unzip(os.pread(file.fileno(), RAW_BYTES, self._raw_offset), bytes_max)
        self.offset += len(data)
        return data

    def _unzip(self, raw: bytes, bytes_max: int) -> bytes:
        try:
            data = self._zip.decompress(raw, bytes_max)
        except zlib.error:
            self._is_at_end = True
            return b""
        left = self._zip.unused_data if self._zip.eof else self._zip.unconsumed_tail
        self._raw_offset += len(raw) - len(left)
        if self._zip.eof and left:  # files may be put behind each other (RFC 1952, 2.2)
            self._zip = zlib.decompressobj(_GZIP)
        elif self._zip.eof or not (raw or data):
            self._is_at_end = True
        return data
