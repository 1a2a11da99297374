"""How many numbers the operation works on at a time."""

from torch import Tensor

ELSEWHERE = 1 << 26  # 256 MB in float32


def limit(in_cache: int, x: Tensor) -> int:
    """`in_cache` where x is on a processor with caches; on other devices as many as memory should hold at once."""
    return in_cache if x.device.type == "cpu" else ELSEWHERE
