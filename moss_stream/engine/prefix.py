"""Keys by which KV blocks of different requests are recognised as equal.

All audio positions carry the same placeholder id, so a key covers the content of the windows a
block touches besides the ids, and through its parent everything before the block: KV at a position
depends on nothing else. Only full blocks have keys.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from moss_stream.types import TEXT_SLOT, Prompt, Window

HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What one full block of a sequence holds."""

    hash: bytes
    """blake2b-128 over the parent's hash, the ids and the window digests."""
    ids: tuple[int, ...]
    """Token ids of the block's positions."""
    windows: tuple[bytes, ...]
    """Digests of the windows whose audio slots the block touches, in order."""


def block_keys(
    prompt: Prompt,
    windows: Sequence[Window],
    output: Sequence[int],
    block_tokens: int,
    *,
    first: int = 0,
    parent: BlockKey | None = None,
) -> list[BlockKey]:
    """Compute the keys of a sequence's full blocks, from block `first` on.

    A growing sequence passes the number of keys it has and the last of them, and pays for the new
    blocks only.

    Args:
        prompt: The sequence's prompt.
        windows: The windows its audio slots point into.
        output: Tokens after the prompt.
        block_tokens: Positions in a block.
        first: Index of the first block wanted.
        parent: Key of the block before it; None for the first of all.

    Returns:
        One key for each full block.
    """
    window_ends = list(accumulate(prompt.window_tokens))
    num_prompt = len(prompt.ids)
    parent_hash = b"" if parent is None else parent.hash
    keys = []
    for index in range(first, (num_prompt + len(output)) // block_tokens):
        low = index * block_tokens
        high = low + block_tokens
        tail = output[max(low - num_prompt, 0) : max(high - num_prompt, 0)]
        ids = (*prompt.ids[low:high], *tail)
        slots = [slot for slot in prompt.audio_slots[low:high] if slot != TEXT_SLOT]
        touched = sorted({bisect_right(window_ends, slot) for slot in slots})
        digests = tuple(windows[window].digest for window in touched)
        key = BlockKey(_chain(parent_hash, ids, digests), ids, digests)
        parent_hash = key.hash
        keys.append(key)
    return keys


def _chain(parent: bytes, ids: tuple[int, ...], digests: tuple[bytes, ...]) -> bytes:
    # Every block has the same number of ids, so where the digests begin is never in doubt.
    data = b"".join((parent, array("q", ids).tobytes(), *digests))
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()
