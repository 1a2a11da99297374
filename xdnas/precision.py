"""Where automatic mixed precision is switched off: an XD-operation keeps the precision of its parameters."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast(x: Tensor) -> bool:
    """Whether mixed precision is on where x is."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Inside, no product is cast to a lower precision where x is."""
    return torch.autocast(x.device.type, enabled=False) if autocast(x) else nullcontext()
