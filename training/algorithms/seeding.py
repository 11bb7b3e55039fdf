"""Seeds that depend on what is drawn, not on when or beside what it is drawn."""

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) for these parts: the same on every machine and in any order of work.

    A job passes its own seed, the task's id and the number of the draw, so that running
    more games at once, or resuming, draws what one game after the other would.
    """
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "big") >> 1
