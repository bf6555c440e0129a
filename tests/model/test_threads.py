"""Threads keep the number of CPU threads they were given, whoever else asks for another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from moss_stream.model.threads import in_passing, side_threads, use_threads


def test_a_side_thread_does_not_change_how_others_compute() -> None:
    with (
        ThreadPoolExecutor(1, initializer=use_threads, initargs=(3,)) as engine,
        side_threads(1, "side") as side,
    ):
        engine.submit(int).result()
        assert side.submit(torch.get_num_threads).result() == 1
        assert engine.submit(torch.get_num_threads).result() == 3


def test_a_side_thread_does_not_change_what_new_threads_compute_with() -> None:
    before = in_passing(torch.get_num_threads)
    with side_threads(1, "side") as side:
        assert side.submit(torch.get_num_threads).result() == 1
    assert in_passing(torch.get_num_threads) == before


def test_work_in_passing_returns_its_result_and_leaves_no_thread_behind() -> None:
    assert in_passing(lambda: 2 + 2) == 4
