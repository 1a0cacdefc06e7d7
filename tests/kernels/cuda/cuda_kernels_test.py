#!/usr/bin/env python3
"""scripts/cuda_kernels.py: that each way to outgrow the table is noticed."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), *[".."] * 3, "scripts",
                      "cuda_kernels.py")
LOG = """\
ptxas info    : Compiling entry function '{name}' for '{arch}'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem
"""
# blockmgr::device_code::Scale(Params), and as the emulator has it.
NAME = "_ZN8blockmgr11device_code5ScaleENS_6ParamsE"
EMULATED = "_ZN8blockmgr13emulated_code5ScaleENS_6ParamsE"


class CheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.table = self.path("table")
        self.launch({EMULATED: 1024})
        self.log()
        self.assertEqual(self.check("--write"), (0, "1 kernels as in the table"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def launch(self, kernels):
        with open(self.path("shared"), "w") as out:
            out.write("#!/bin/sh\n")
            for kernel, size in kernels.items():
                out.write(f"echo {kernel} {size}\n")
        os.chmod(self.path("shared"), 0o755)

    def log(self, **values):
        values = {"name": NAME, "arch": "sm_90", "stack": 0, "spilled": 0,
                  "registers": 40, "shared": 16, **values}
        with open(self.path("log"), "w") as out:
            out.write(LOG.format(**values))

    def check(self, *options, compiler="V1"):
        result = subprocess.run(
            [sys.executable, SCRIPT, "check", "--table", self.table, "--compiler",
             compiler, "--shared", self.path("shared"), *options,
             self.path("log")], stdout=subprocess.PIPE, text=True)
        return result.returncode, result.stdout.strip()

    def assert_found(self, text, **options):
        status, output = self.check(**options)
        self.assertEqual(status, 1)
        self.assertIn(text, output)

    def test_the_table_has_static_and_dynamic_shared_memory(self):
        with open(self.table) as table:
            self.assertIn("\nScale sm_90 40 1040 0\n", table.read())

    def test_less_is_no_problem(self):
        self.log(registers=39)
        self.assertEqual(self.check()[0], 0)

    def test_growth_is(self):
        grew = "grew: Scale sm_90: expected at most (40, 1040, 0)"
        for values in ({"registers": 41}, {"shared": 17}, {"stack": 8}):
            self.log(**values)
            self.assert_found(grew)
        self.log()
        self.launch({EMULATED: 1025})
        self.assert_found(grew)

    def test_other_kernels_are(self):
        self.log(name="_Z5OtherPf")
        self.launch({"_Z5OtherPf": 0})
        self.assert_found("not in the table: Other sm_90")
        self.assert_found("in the table, but gone: Scale sm_90")

    def test_architectures_that_the_compiler_does_not_know_are_none(self):
        with open(self.table, "a") as table:
            table.write("Scale sm_100 40 1040 0\n")
        self.assertEqual(self.check()[0], 0)

    def test_kernels_that_nobody_launches_are(self):
        self.launch({})
        self.assert_found("never launched: Scale")

    def test_spills_are_whoever_compiles(self):
        self.log(spilled=4)
        self.assert_found("spills: Scale sm_90")
        self.assert_found("spills: Scale sm_90", compiler="V2")

    def test_another_compiler_may_use_more(self):
        self.log(registers=50)
        self.assertEqual(self.check(compiler="V2")[0], 0)

    def test_more_shared_memory_than_there_is_is(self):
        self.launch({EMULATED: 166896})
        self.assertEqual(self.check("--write")[0], 0)
        self.launch({EMULATED: 166897})
        self.assert_found("too much shared memory: Scale sm_90", compiler="V2")

    def test_an_empty_log_is(self):
        with open(self.path("log"), "w"):
            pass
        self.assert_found("no kernel in the logs")


if __name__ == "__main__":
    unittest.main()
