"""Marks of tests that need a device, by which `make gpu-check` finds them."""

import pytest
import torch

needs_cuda = (
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
)
