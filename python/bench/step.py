#!/usr/bin/env python3
"""Times schedule and update of 256 decoding requests from Python.

  step.py [PROGRAM]     PROGRAM: blockmgr_step_bench of the same build, for C++

Prints medians in microseconds: of the two calls; of the two calls and of the arrays
that an engine reads each step.
"""
import statistics
import subprocess
import sys
import time

import numpy as np

import blockmgr

NUM_REQUESTS = 256
NUM_STEPS = 4000
ARRAYS = ("slots", "positions", "num_tokens", "samples", "block_offsets",
          "blocks", "released", "copies")


def median(reads_arrays):
    layout = blockmgr.KvLayout(num_layers=32, num_heads=8, num_q_heads=32,
                               head_dim=128, num_blocks=200000)
    scheduler = blockmgr.Scheduler(layout)
    for i in range(NUM_REQUESTS):
        scheduler.submit(str(i), np.full(100, i, np.int32), 5000)
    sampled = np.full(NUM_REQUESTS, 7, np.int32)
    times = []
    while len(times) < NUM_STEPS:
        begin = time.perf_counter()
        plan = scheduler.schedule()
        if reads_arrays:
            for name in ARRAYS:
                getattr(plan, name)
        is_full = len(plan) == NUM_REQUESTS and plan.total_tokens == NUM_REQUESTS
        answer = sampled if is_full else np.where(plan.samples, 7, -1).astype(
            np.int32)
        effects = scheduler.update(blockmgr.StepResult(plan.step, answer))
        if reads_arrays:
            _ = effects.token_requests, effects.tokens
        if is_full:
            times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


def main():
    calls, arrays = median(False), median(True)
    print(f"Python: schedule and update {calls:.1f} us, with arrays "
          f"{arrays:.1f} us")
    if len(sys.argv) > 1:
        own = float(subprocess.run(sys.argv[1:2], check=True, text=True,
                                   stdout=subprocess.PIPE).stdout)
        print(f"C++: {own:.1f} us; Python within 1.5 times and 20 us of it: "
              f"{calls <= 1.5 * own + 20 and arrays <= 1.5 * own + 20}")


if __name__ == "__main__":
    main()
