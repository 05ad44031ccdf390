"""Which digests were ever marked, in a few bits for each: what was marked is never said not to be.

A Bloom filter (B. Bloom, CACM 13:7, 1970) whose hash functions are the digest's own bits, which are
as good as random. The other way it may err: with 10 bits a digest, for one in eighty.
"""

_SHIFTS = (0, 30, 60, 90)


class Marks:
    """A set that only grows, in memory that does not."""

    def __init__(self, size_bytes: int) -> None:
        """Nothing is marked. `size_bytes` is a power of two, up to 128 MiB."""
        self._bits = bytearray(size_bytes)
        self._mask = size_bytes * 8 - 1

    def add(self, digest: bytes) -> None:
        """From now on it is in."""
        number = int.from_bytes(digest, "little")
        for shift in _SHIFTS:
            place = number >> shift & self._mask
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, digest: bytes) -> bool:
        """False only of what was never marked."""
        number = int.from_bytes(digest, "little")
        for shift in _SHIFTS:
            place = number >> shift & self._mask
            if not self._bits[place >> 3] & 1 << (place & 7):
                return False
        return True
