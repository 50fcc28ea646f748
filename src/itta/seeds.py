"""Seeds: one number from several values, the same on every machine and in every process."""

import hashlib
import random


def derive_seed(*parts: object) -> int:
    """Hash the parts to a seed below 2³¹, as DomainBed does, so that its splits and draws can be reproduced.

    >>> derive_seed(0, 0), derive_seed(1, 0)
    (894182419, 785910682)
    """
    return int(hashlib.md5(str(parts).encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % 2**31


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch, which other code may use.

    torch seeds the generator of every device, so a run on one device repeats itself.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
