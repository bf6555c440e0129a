"""What malloc does with memory that a step has freed."""

from __future__ import annotations

import ctypes
import platform

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 256 << 20
"""Memory that is kept for the next step at most, of the heap that the first thread uses."""
_LARGEST_ON_HEAP = 32 << 20
"""What is larger is never kept; glibc allows no more. Also what other heaps keep."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to `KEPT_BYTES`, instead of giving it back at once.

    The next step needs it again, and would otherwise get it from the kernel page by page: 6000 page
    faults a window, a tenth of the encoder's time.

    Returns:
        Whether that could be asked for: of glibc alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    wishes = (
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP),
        # A heap of other threads keeps as much as its padding.
        (_M_TOP_PAD, _LARGEST_ON_HEAP),
    )
    return all(mallopt(name, value) for name, value in wishes)
