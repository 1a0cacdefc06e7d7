#!/usr/bin/env python3
"""What of bench/compare_flashinfer.py needs no GPU: its page tables."""
import importlib
import os
import struct
import subprocess
import sys
import tempfile
import types
import unittest

BENCH = os.path.join(os.path.dirname(__file__), "..", "..", "bench")
SCRIPT = os.path.join(BENCH, "compare_flashinfer.py")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
compare = importlib.import_module("compare_flashinfer")


def problem_bytes(lengths, tail_tokens):
    """Two lists of pages of 16, in a pool of 8; a tail in block 3."""
    pages = [5, 0, 2][:sum(-(-n // 16) for n in lengths)]
    blocks = [3][:tail_tokens]
    return struct.pack(
        f"<8sII6iQqq{3 + len(pages) + len(blocks)}i", b"BMKVPRB1", 2, 1, 1, 2, 4,
        64, 16, 8, 9, len(pages), len(blocks), *lengths, tail_tokens, *pages,
        *blocks)


class CompareFlashInferTest(unittest.TestCase):
    def tables(self, lengths, tail_tokens=0):
        with tempfile.NamedTemporaryFile() as file:
            file.write(problem_bytes(lengths, tail_tokens))
            file.flush()
            return compare.page_tables(compare.base.Problem(file.name))

    def test_a_list_is_a_request(self):
        self.assertEqual(self.tables((17, 3)), ([0, 2, 3], [5, 0, 2], [1, 3]))
        # A page that is full has 16 entries, not 0.
        self.assertEqual(self.tables((32, 16)), ([0, 2, 3], [5, 0, 2], [16, 16]))

    def test_refuses_what_flashinfer_does_not_have(self):
        with self.assertRaisesRegex(ValueError, "no tails.* got 10 tokens"):
            self.tables((17, 3), 10)
        with self.assertRaisesRegex(ValueError, "at least one token, got 1"):
            self.tables((17, 0))

    def test_a_mode_that_fails_is_not_run(self):
        def fail(*_, **__):
            raise RuntimeError("no compiler")
        with tempfile.NamedTemporaryFile() as file:
            file.write(problem_bytes((17, 3), 0))
            file.flush()
            problem = compare.base.Problem(file.name)
        torch = types.SimpleNamespace(
            cuda=types.SimpleNamespace(empty_cache=lambda: None), float16=1,
            zeros=lambda *_, **__: None, uint8=0)
        flashinfer = types.SimpleNamespace(
            BatchDecodeWithPagedKVCacheWrapper=fail)
        results, not_run = compare.run_modes(problem, torch, flashinfer, "cuda",
                                             5)
        self.assertEqual(results, [])
        self.assertEqual(
            not_run, [{"kernel": f"flashinfer_decode_{mode}",
                       "why": "no compiler"} for mode in ("plain", "cores")])

    def test_says_that_flashinfer_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("numpy", "torch"):
                with open(os.path.join(folder, f"{name}.py"), "w",
                          encoding="utf-8"):
                    pass
            path = os.path.join(folder, "problem.bin")
            with open(path, "wb") as file:
                file.write(problem_bytes((17, 3), 0))
            done = subprocess.run(
                [sys.executable, "-S", SCRIPT, "--problem", path],
                env={"PYTHONPATH": folder}, capture_output=True, text=True,
                check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not compared, expected numpy, PyTorch and FlashInfer: "
                      "No module named 'flashinfer'", done.stderr)


if __name__ == "__main__":
    unittest.main()
