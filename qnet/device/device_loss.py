"""Loss of the accelerator: errors after which this process cannot use it any more."""

import torch


def is_lost(error: Exception) -> bool:
    """True if the device itself failed, rather than what it was asked for.

    After an illegal memory access, a failed assertion or a fault of the hardware CUDA refuses all
    that this process asks for later. What it only would not launch leaves it sound; so does a lack
    of memory, which is an `OutOfMemoryError` besides.
    """
    if not isinstance(error, torch.AcceleratorError):
        return False
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False
