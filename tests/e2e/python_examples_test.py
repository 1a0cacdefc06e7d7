#!/usr/bin/env python3
"""The examples in Python against a real daemon.

  python_examples_test.py BLOCKMGRD FOLDER_OF_MESSAGES
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

DAEMON, MESSAGES = sys.argv[1:3]
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"
ENVIRONMENT = dict(os.environ, PYTHONPATH=MESSAGES)


class PythonExamplesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"unix:{self.folder.name}/s"
        self.daemon = subprocess.Popen(
            [DAEMON, "--listen", self.address, "--log-level", "warn"])
        self.engine = subprocess.Popen(
            [sys.executable, EXAMPLES / "engine.py", "--address", self.address,
             "--num-blocks", "1100"], env=ENVIRONMENT, text=True,
            stdout=subprocess.PIPE)

    def tearDown(self):
        for process in (self.engine, self.daemon):
            process.kill()
            process.wait()
        self.engine.stdout.close()
        self.folder.cleanup()

    def frontend(self, *flags):
        return subprocess.run(
            [sys.executable, EXAMPLES / "frontend.py", "--address",
             self.address, *flags], env=ENVIRONMENT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100,
            check=False)

    def wait_for_engine(self):
        """Until a request is served: an engine takes a while to attach."""
        while self.frontend("--num-prompts", "1", "--prompt-len", "10",
                            "--keep-ratio", "").returncode != 0:
            self.assertIsNone(self.engine.poll())

    def test_serves_with_and_without_eviction(self):
        self.wait_for_engine()
        # 12 prompts of 126 blocks do not fit at a time.
        done = self.frontend("--num-prompts", "12", "--keep-ratio", "")
        self.assertRegex(done.stdout, r"^12 of 12 requests, 384 tokens; "
                         r"the daemon has evicted 0 times", done.stderr)
        done = self.frontend("--num-prompts", "12", "--keep-ratio", "0.2")
        self.assertRegex(done.stdout, r"^12 of 12 requests, 384 tokens; "
                         r"the daemon has evicted 12 times", done.stderr)
        # At least three quarters of 12 prompts of 125 blocks of 2 MiB.
        freed = int(re.search(r"(\d+) MiB", done.stdout).group(1))
        self.assertGreater(freed, 0.75 * 12 * 125 * 2)
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(60), 0)
        self.assertEqual(self.engine.wait(60), 0)
        self.assertRegex(self.engine.stdout.read(), r"[1-9][0-9]+ steps")

    def test_an_engine_that_is_refused_fails(self):
        self.wait_for_engine()
        second = subprocess.run(
            [sys.executable, EXAMPLES / "engine.py", "--address", self.address],
            env=ENVIRONMENT, text=True, stderr=subprocess.PIPE, timeout=100,
            check=False)
        self.assertEqual(second.returncode, 1)
        self.assertIn("engine.py: ALREADY_EXISTS", second.stderr)

    def test_errors_are_told(self):
        self.wait_for_engine()
        done = self.frontend("--keep-ratio", "1.5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("frontend.py: INVALID_ARGUMENT: target.keep_ratio",
                      done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
