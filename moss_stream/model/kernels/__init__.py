"""What is compiled for the machine at hand, because torch has nothing as fast for it."""

from __future__ import annotations

import torch

from moss_stream.model.kernels import attention, norms, softmax


def prepare(dtype: torch.dtype) -> None:
    """Compile everything for one dtype, so that no request waits for it.

    Takes ten seconds the first time on a machine, then what reading it takes.
    """
    for module in (attention, norms, softmax):
        module.compiled(dtype)
