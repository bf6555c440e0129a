"""Threads that call torch: the engine's and those beside it.

Every thread that calls torch with more than one CPU thread keeps an OpenMP team for as long as it
lives. Once all teams together outnumber the cores, the members of each sleep at every barrier
instead of spinning, whether the other teams have work or not: with a team left behind by the thread
that loaded the model, a decode step of the small checkpoint took 6.5 ms instead of 3.8 (two cores,
two threads). So the engine's team is to be the only one.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")


_INTERRUPTED = 130
"""Exit code of a process that was interrupted, as shells know it."""
_lock = threading.Lock()


def use_threads(count: int) -> None:
    """Let the calling thread compute with `count` threads from now on, and no other thread."""
    # A thread's first use of torch takes what was set last in any thread, so what others are to
    # find there is put back, from a thread that ends.
    with _lock:
        others = in_passing(torch.get_num_threads)
        torch.get_num_threads()
        torch.set_num_threads(count)
        in_passing(partial(torch.set_num_threads, others))


def side_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads for small models beside the engine: each computes alone, without a team."""
    return ThreadPoolExecutor(
        count, thread_name_prefix=name, initializer=use_threads, initargs=(1,)
    )


def in_passing(work: Callable[[], T]) -> T:
    """Do `work` with all cores on a thread that ends with it, and its team with the thread."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    # No pool, which waits even when Ctrl-C is pressed: loading a model may take minutes.
    thread = threading.Thread(target=run, name="moss-passing", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        atexit.register(_leave, thread)
        raise
    finally:
        if outcome.done():
            thread.join()


def _leave(thread: threading.Thread) -> None:
    """End the process if `thread` still computes: torch aborts one that Python ends at its exit."""
    if thread.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_INTERRUPTED)
