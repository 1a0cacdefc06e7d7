#!/usr/bin/env python3
"""What of bench/compare_pytorch.py needs no GPU: reading problems."""
import contextlib
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "bench",
                      "compare_pytorch.py")
SPEC = importlib.util.spec_from_file_location("compare_pytorch", SCRIPT)
sys.dont_write_bytecode = True
compare = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare)


def problem_bytes(magic=b"BMKVPRB1", version=2, element_type=1,
                  page_ids=(5, 0, 2), tail_block=3):
    # As in kernel_problem_test.cc.
    return struct.pack("<8sII6iQqq3i3ii", magic, version, element_type, 1, 2, 4,
                       64, 16, 8, 9, 3, 1, 17, 3, 10, *page_ids, tail_block)


class FakeCuda:
    """As much of torch.cuda as times a step: one takes a millisecond."""

    def __init__(self, free_bytes):
        self.free_bytes = free_bytes
        self.num_frees = 0

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def synchronize(self):
            pass

        def elapsed_time(self, _):
            return 1.0

    def mem_get_info(self, _):
        return self.free_bytes, self.free_bytes

    def get_device_properties(self, _):
        return types.SimpleNamespace(L2_cache_size=50 << 20)

    def empty_cache(self):
        self.num_frees += 1


class OutOfMemoryError(RuntimeError):
    """PyTorch's is one, too."""


class ModesTest(unittest.TestCase):
    def run_modes(self, makers, free_bytes=1 << 40):
        self.cuda = FakeCuda(free_bytes)
        with tempfile.NamedTemporaryFile() as file:
            file.write(problem_bytes())
            file.flush()
            problem = compare.Problem(file.name)
        with unittest.mock.patch.dict(compare.MAKERS, makers), \
                contextlib.redirect_stderr(io.StringIO()) as log:
            results, not_run = compare.run_modes(
                problem, types.SimpleNamespace(cuda=self.cuda), "cuda",
                ["loop", "padded"], 5)
        self.log = log.getvalue()
        return results, not_run

    @staticmethod
    def good(*_):
        return lambda copy: None, 2

    @staticmethod
    def too_large(*_):
        raise OutOfMemoryError("CUDA out of memory")

    def test_a_mode_without_room_leaves_the_other(self):
        for first in (True, False):
            makers = {"loop": self.too_large if first else self.good,
                      "padded": self.good if first else self.too_large}
            results, not_run = self.run_modes(makers)
            names = ["pytorch_sdpa_loop", "pytorch_sdpa_padded"]
            self.assertEqual(results[0]["kernel"], names[first])
            self.assertEqual(results[0]["median_us"], 1000)
            self.assertEqual(results[0]["num_samples"], 5)
            self.assertEqual(len(results), 1)
            self.assertEqual([(entry["kernel"], entry["why"])
                              for entry in not_run],
                             [(names[not first], "CUDA out of memory")])
            self.assertIn("not run: CUDA out of memory", self.log)
            self.assertEqual(self.cuda.num_frees, 2)

    def test_what_cannot_fit_is_not_made(self):
        made = []
        results, not_run = self.run_modes(
            {"loop": self.good, "padded": lambda *_: made.append(1)},
            free_bytes=2 * 27 * 64 * 4 - 1)
        self.assertEqual((len(results), made), (1, []))
        self.assertIn("padded to the longest take", not_run[0]["why"])

    def test_the_copies_take_turns(self):
        taken = []
        compare.time_step(types.SimpleNamespace(cuda=FakeCuda(0)),
                          taken.append, 4, 6)
        self.assertEqual(taken, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])

    def test_as_many_copies_as_ours(self):
        self.assertEqual(compare.num_copies(64 << 20, 50 << 20), 5)
        self.assertEqual(compare.num_copies(1 << 30, 50 << 20), 1)
        self.assertEqual(compare.num_copies(1 << 20, 50 << 20), 16)
        self.assertEqual(compare.num_copies(300 << 20, 50 << 20), 1)


class CompareTest(unittest.TestCase):
    def run_on(self, data, *arguments):
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return subprocess.run(
                [sys.executable, SCRIPT, "--problem", file.name, *arguments],
                capture_output=True, text=True, check=False)

    def test_reads_what_the_format_says(self):
        run = self.run_on(problem_bytes(), "--check")
        self.assertEqual(run.returncode, 0, run.stderr)
        got = json.loads(run.stdout)
        self.assertEqual((got["num_sequences"], got["num_heads"],
                          got["group_size"], got["max_length"]), (1, 2, 4, 27))
        self.assertEqual((got["dtype"], got["tail_tokens"]), ("fp16", 10))
        # Two lists, with the tail in each.
        self.assertEqual(got["kv_bytes"], 40 * 64 * 2 * 2)
        first = 5 * 2 * 16 * 64
        self.assertEqual(got["first_elements"],
                         [compare.element(9, first + i) for i in range(4)])
        # The second head's page of block 3.
        first = 7 * 2 * 16 * 64
        self.assertEqual(got["last_tail_elements"],
                         [compare.element(9, first + i) for i in range(4)])

    def test_elements_are_splitmix(self):
        # The generator's published first number of state 0.
        self.assertEqual(compare.element(0, 0),
                         (0xE220A8397B1DCDAF >> 48) / 32768 - 1)

    def test_refuses_other_files(self):
        good = problem_bytes()
        for bad in (b"", good[:30], good[:-4], good + b"1234",
                    problem_bytes(magic=b"BMKVPRB2"),
                    problem_bytes(element_type=2), problem_bytes(tail_block=4),
                    problem_bytes(page_ids=(8, 0, 1))):
            run = self.run_on(bad, "--check")
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("expected", run.stderr)
            self.assertNotIn("Traceback", run.stderr)

    def test_names_the_version_it_expects_and_got(self):
        run = self.run_on(problem_bytes(version=1), "--check")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("version 2, got b'BMKVPRB1' version 1", run.stderr)

    def test_refuses_unknown_flags(self):
        self.assertEqual(self.run_on(problem_bytes(), "--what").returncode, 2)
        self.assertEqual(
            self.run_on(problem_bytes(), "--num-samples", "0").returncode, 2)


if __name__ == "__main__":
    unittest.main()
