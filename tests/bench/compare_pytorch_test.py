#!/usr/bin/env python3
"""What of bench/compare_pytorch.py needs no GPU: reading problems."""
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

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
