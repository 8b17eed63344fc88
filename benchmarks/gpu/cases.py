"""The models and batches whose training steps steps.py and train.py measure on one GPU."""
from typing import NamedTuple


class Case(NamedTuple):
    width: str
    layers: int
    seq_len: int
    sequences: int       # of a microbatch
    microbatches: int    # of a step
    recompute: bool      # whole layers


class Width(NamedTuple):
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int


WIDTHS = {
    "1B": Width(2048, 8192, 32, 8, 64, 128256),
    "2B": Width(2048, 16384, 8, 1, 256, 256000),
    "8B": Width(4096, 14336, 32, 8, 128, 128256),
    "70B": Width(8192, 28672, 64, 8, 128, 32000),
}
CASES = [
    Case("8B", 4, 4096, 1, 1, False), Case("8B", 4, 4096, 2, 2, False), Case("8B", 8, 4096, 1, 4, False),
    Case("8B", 8, 8192, 1, 2, False), Case("8B", 8, 2048, 2, 2, False), Case("8B", 8, 8192, 1, 2, True),
    Case("8B", 4, 16384, 1, 1, False), Case("8B", 4, 32768, 1, 1, True), Case("8B", 4, 65536, 1, 1, True),
    Case("70B", 2, 4096, 1, 2, False), Case("70B", 2, 8192, 1, 1, False), Case("70B", 3, 4096, 1, 2, True),
    Case("1B", 16, 4096, 2, 1, False), Case("1B", 16, 2048, 4, 2, False), Case("1B", 16, 8192, 1, 1, False),
    Case("1B", 16, 512, 4, 2, False), Case("1B", 16, 1024, 1, 1, False),
    Case("2B", 8, 4096, 1, 2, False), Case("2B", 8, 8192, 1, 1, True),
    Case("8B", 8, 4096, 2, 4, False), Case("8B", 8, 4096, 2, 16, False),
    Case("8B", 2, 212992, 1, 1, True), Case("8B", 2, 212992, 1, 1, False),
]
