"""Marks of tests that need a device, for `make gpu-check`, and what makes a host wait for CUDA."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.support.stand_in_device import Waits

needs_cuda = (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"))


@contextmanager
def counted_synchronizations() -> Iterator[Waits]:
    """Within this, what makes the host wait for a GPU is counted; torch warns of each."""
    waits = Waits()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            waits.note("wait")

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
