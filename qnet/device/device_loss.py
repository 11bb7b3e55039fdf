"""Loss of the accelerator: errors after which this process cannot use it any more."""

import torch


def is_lost(error: Exception) -> bool:
    """True if the device itself failed, rather than what it was asked for.

    After an illegal memory access, a failed assertion or a hardware fault, CUDA refuses everything
    that this process asks for later. A launch that was merely refused leaves the device usable, and
    so does a lack of memory, which is an `OutOfMemoryError`.
    """
    if not isinstance(error, torch.AcceleratorError):
        return False
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False
