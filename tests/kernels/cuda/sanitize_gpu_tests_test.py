#!/usr/bin/env python3
"""sanitize_gpu_tests.py: that no failure is a skip."""
import os
import subprocess
import sys
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "sanitize_gpu_tests.py")
NO_DEVICE = "no GPU: the CUDA runtime finds no device"
UNKNOWN = "========= Error: Device not supported. Please refer to the manual"


def exit_code(code, *lines):
    """The script's, of a command that prints the lines and exits with code."""
    command = ["sh", "-c", 'code=$1; shift; printf "%s\\n" "$@"; exit "$code"',
               "sh", str(code), *lines]
    run = subprocess.run([sys.executable, SCRIPT, *command],
                         capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == list(lines), run
    return run.returncode


class SanitizeTest(unittest.TestCase):
    def test_skips_without_a_device_only(self):
        self.assertEqual(exit_code(0, "a.h:27: Skipped", NO_DEVICE), 77)
        self.assertEqual(exit_code(0, "passed"), 0)
        # One test's lack of memory, and an error of the runtime.
        self.assertEqual(
            exit_code(0, "no GPU: none with so much memory free"), 0)
        self.assertEqual(
            exit_code(1, "no GPU: INTERNAL: counting the devices"), 1)

    def test_skips_where_the_tool_knows_no_such_device(self):
        self.assertEqual(exit_code(1, UNKNOWN), 77)
        self.assertEqual(exit_code(0, UNKNOWN), 77)
        self.assertEqual(exit_code(1, "Device not supported"), 1)

    def test_failures_are_failures_whatever_is_printed(self):
        for line in (NO_DEVICE, UNKNOWN, "passed"):
            self.assertEqual(exit_code(99, line), 99)
        self.assertEqual(exit_code(1, NO_DEVICE), 1)
        self.assertEqual(exit_code(1, "passed"), 1)

    def test_a_signal_is_a_failure(self):
        run = subprocess.run([sys.executable, SCRIPT, "sh", "-c", "kill -9 $$"],
                             check=False)
        self.assertEqual(run.returncode, 1)


if __name__ == "__main__":
    unittest.main()
