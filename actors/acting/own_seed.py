"""Seeds for those who play together."""

import zlib


def own_seed(seed: int, name: str) -> int:
    """Returns the seed of one of several who play together, by its name: dice that fall as
    another's do would make players that are alike choose alike."""
    return zlib.crc32(f"{seed} {name}".encode())
