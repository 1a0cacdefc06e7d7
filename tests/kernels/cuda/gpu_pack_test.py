#!/usr/bin/env python3
"""scripts/gpu.sh: what it packs runs elsewhere.

  gpu_pack_test.py SOURCE_FOLDER BUILD_FOLDER
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(word) for word in sys.argv[1:3])
# Of one piece with the system.
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+)\.so"
                    r"|ld-linux|linux-vdso)")


def run(*words, **options):
    return subprocess.run([str(word) for word in words], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **options)


class GpuPackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        packed = folder / "bundle.tar.xz"
        trace = folder / "trace.csv"
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                         "2023-11-16 18:15:46.6805900,74,14\n"
                         "2023-11-16 18:15:50.9951690,96,19\n")
        done = run(SOURCE / "scripts/gpu.sh", "pack", "--built", BUILD,
                   "--output", packed, "--trace", trace)
        assert done.returncode == 0, done.stdout
        done = run("tar", "-C", folder, "-xf", packed)
        assert done.returncode == 0, done.stdout
        cls.bundle = folder / "blockmgr-gpu"
        cls.script = cls.bundle / "gpu.sh"
        cls.out = folder / "out"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_libraries_are_packed_or_the_systems(self):
        programs = [path for path in (self.bundle / "bin").iterdir()
                    if path.suffix != ".py"]
        self.assertEqual(len(programs), 6)
        for program in programs:
            listed = run("ldd", program, env={
                "LD_LIBRARY_PATH": str(self.bundle / "lib")}).stdout
            self.assertNotIn("not found", listed)
            for line in listed.splitlines():
                words = line.split()
                name = pathlib.Path(words[0]).name
                if not SYSTEM.match(name):
                    self.assertEqual(words[2], str(self.bundle / "lib" / name))

    def test_tests_run_or_say_that_there_is_no_gpu(self):
        done = run(self.script, "run", "--out", self.out, "--shards", "1", "tests",
                   env={"PATH": "/usr/bin:/bin", "GTEST_FILTER": "Row*"})
        if done.returncode != 0:
            self.assertIn("no GPU: tests have skipped themselves", done.stdout)
            self.assertNotIn("shard 0 failed", done.stdout)
        log = (self.out / "kernels_gpu_test.log").read_text()
        self.assertRegex(log, r"\[==========\] [1-9][0-9]* test")

    def test_a_job_that_fails_fails_the_run(self):
        done = run(self.script, "run", "--out", self.out / "missing", "figures",
                   env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("gpu.sh: figures: FAILED", done.stdout)

    def test_a_model_without_a_gpu_says_so(self):
        done = run(self.script, "run", "--out", self.out / "model", "--model",
                   self.script, "model",
                   env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("gpu.sh: model: FAILED", done.stdout)

    def test_python_without_a_wheel_says_so(self):
        done = run(self.script, "run", "--out", self.out / "python", "python",
                   env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("expected a bundle with a wheel", done.stdout)

    def test_programs_understand_their_command_lines(self):
        done = run(self.script, "run", "--out", self.out / "kernels", "figures",
                   "compare", "kernels",
                   env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stdout.count("expected a CUDA device"), 3)
        self.assertNotIn("--help", done.stdout)

    def test_workloads_run_on_the_cpu(self):
        out = self.out / "rehearsal"
        done = run(self.script, "run", "--rehearse", "--out", out, "model",
                   "papers")
        self.assertEqual(done.returncode, 0, done.stdout)
        for job, names in (("model", ("closed_snapkv", "long_keydiff",
                                      "turns_full", "trace_keydiff")),
                           ("papers", ("32k_critical", "128k_chunks_1024",
                                       "context_429000", "128k_full"))):
            table, = out.glob(f"rehearsal_*_{job}.txt")
            self.assertRegex(table.read_text(), "".join(
                rf"(?s:.*){job}_{name} " for name in names))
            # Figures that mean nothing are nobody's results.
            self.assertEqual(list(out.glob("*.source")), [])

    def test_wrong_command_lines(self):
        for words in (["speed"], ["--shards", "0", "tests"], ["--out"],
                      ["--model", "/missing.gguf", "model"],
                      ["--built", BUILD, "tests"]):
            done = run(self.script, "run", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("gpu.sh --help", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
