"""Loss of the accelerator: errors after which this process cannot use it any more."""

import sys


def is_lost(error: Exception) -> bool:
    """True if the device itself failed, rather than what it was asked for.

    After an illegal memory access, a failed assertion or a hardware fault, CUDA refuses everything
    that this process asks for later. A launch that was merely refused leaves the device usable, and
    so does a lack of memory, which is an `OutOfMemoryError`.
    """
    # Only a torch that is already imported can have raised an error of its own, and a server whose
    # models all run elsewhere has none.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.AcceleratorError):
        return False
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False
