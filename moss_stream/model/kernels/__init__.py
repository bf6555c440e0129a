"""What is compiled for the machine at hand, because torch has nothing as fast for it."""

from __future__ import annotations

import logging
import threading

import torch

from moss_stream.model.kernels import attention, norms, pair_attention, softmax
from moss_stream.model.kernels.pair_products import multiplies_pairs

logger = logging.getLogger(__name__)

_NOTICE_AFTER_S = 2.0
"""Reading what was compiled takes less."""


def prepare(dtype: torch.dtype) -> None:
    """Compile everything for one dtype, so that no request waits for it.

    Takes about ten seconds the first time on a machine, then what reading it takes.
    """
    notice = threading.Timer(_NOTICE_AFTER_S, logger.info, ["compiling for this machine, once"])
    notice.daemon = True  # else Ctrl-C would wait for it
    notice.start()
    try:
        for module in (attention, norms, softmax):
            module.compiled(dtype)
        if dtype == torch.bfloat16 and multiplies_pairs():
            pair_attention.compiled()
    finally:
        notice.cancel()
