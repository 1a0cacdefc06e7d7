#!/usr/bin/env python3
"""scripts/gpu.sh in a small checkout, with programs that only say how they were
called: order, limits of time, what is up to date, results, exit status.

  gpu_script_test.py SOURCE_FOLDER [TEST]
"""
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zipfile

SOURCE = pathlib.Path(sys.argv[1])
JOBS = ["tests", "figures", "compare", "profiles", "layouts", "huge", "graphs",
        "python", "kernels", "model", "papers", "memcheck", "racecheck", "synccheck",
        "long"]

# Logs how it was called. HANG and FAIL are patterns of command lines that never
# end, or fail; of those of CRASH the engine ends.
PROGRAM = r"""#!/bin/bash
line="${0##*/} $*"
echo "${line}" >>"${FAKE_LOG}"
if [[ ${0##*/} == nvidia-smi ]]; then
  if [[ $* == *memory* ]]; then echo 80000; else echo "${GPU}"; fi
  exit 0
fi
if [[ -n ${FAIL:-} && ${line} =~ ${FAIL} ]]; then echo broken >&2; exit 1; fi
output=
while (($# > 0)); do
  case "$1" in
    --output) output=$2 ;;
    --result-dir) folder=$2 ;;
    --result-filename) output=${folder}/$2 ;;
    --problem) if [[ ${line} == blockmgr-bench* ]]; then : >"$2"; fi ;;
  esac
  shift
done
if [[ -n ${output} ]]; then echo '{"results": []}' >"${output}"; fi
if [[ -n ${CRASH:-} && ${line} =~ ${CRASH} ]]; then
  kill "$(<"${FAKE_LOG}.engine")"
  exec sleep 100
fi
if [[ -n ${HANG:-} && ${line} =~ ${HANG} ]]; then
  trap '' TERM
  if [[ -z ${STUBBORN:-} ]]; then trap - TERM; fi
  echo $$ >>"${FAKE_LOG}.hung"
  while true; do sleep 0.1; done
fi
case "${line}" in
  blockmgr-engine*)
    echo "$$" >"${FAKE_LOG}.engine"
    echo "matrix products: none, attached to nothing" >&2
    exec sleep 100
    ;;
  blockmgrd*) exec sleep 100 ;;
  *_test*) echo "[==========] 3 tests ran" ;;
  python3*compare_sim.py\ rates*) echo --sim-flops 7 ;;
  python3*compare_*) echo '{}' ;;
esac
"""


def run(*words, **options):
    return subprocess.run([str(word) for word in words], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **options)


def is_running(pid):
    """Whether a process runs. One that waits for its parent does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Checkout(unittest.TestCase):
    """Each test has a checkout, programs and a folder of results."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.folder / "checkout"
        self.out = self.folder / "out"
        self.log = self.folder / "log"
        self.log.touch()
        self.copy_scripts()
        tools = self.folder / "tools"
        for path in [self.root / "build/dev/bin" / name for name in (
                "kernels_gpu_test", "bench_gpu_test", "e2e_gpu_test",
                "blockmgr-bench", "blockmgr-engine", "blockmgrd")] + [
                    tools / name for name in (
                        "nvidia-smi", "python3", "compute-sanitizer")]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PROGRAM)
            path.chmod(0o755)
        lengths = self.root / "lengths"
        lengths.mkdir()
        for name in ("llama-3.1-8b-instruct_a", "llama-3.1-8b-instruct_b",
                     "gpt-oss-20b_a"):
            (lengths / f"{name}.npy").touch()
        self.environment = {
            "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(self.folder),
            "FAKE_LOG": str(self.log), "GPU": "NVIDIA H100 80GB HBM3"}
        self.commit("all")

    def copy_scripts(self):
        """In a checkout whose jobs may take a second, and end in one."""
        scripts = self.root / "scripts"
        scripts.mkdir(parents=True)
        for name in ("gpu.sh", "gpu_jobs.sh"):
            text = (SOURCE / "scripts" / name).read_text()
            text, count = re.subn(
                r"^readonly grace=\d+$" if name == "gpu.sh" else
                r"(?<=^add_job )(\S+) \d+ \d+(?= )",
                "readonly grace=1" if name == "gpu.sh" else r"\1 2 1",
                text, flags=re.MULTILINE)
            self.assertGreater(count, 0)
            (scripts / name).write_text(text)
            shutil.copymode(SOURCE / "scripts" / name, scripts / name)
        for name in re.findall(r"\S+\.py", re.search(
                r"scripts_of_jobs=\((.*?)\)", text, re.DOTALL)[1]):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.root / name)
        for name in ("kernels/a.cu", "python/a.py", "docs/a.md",
                     "docs/python.md", "tests/python/device_tensors.py",
                     "tests/python/device/test_a.py"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("one")
        (self.root / ".gitignore").write_text("/build/\n/lengths/\n")

    def git(self, *words):
        done = run("git", "-C", self.root, "-c", "user.name=a",
                   "-c", "user.email=a@b", *words, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.strip()

    def commit(self, message):
        if not (self.root / ".git").exists():
            self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def gpu(self, *words, **environment):
        done = run(self.root / "scripts/gpu.sh", *words, cwd=self.folder,
                   env={**self.environment, **environment})
        return done.returncode, done.stdout

    def run_jobs(self, *words, **environment):
        """Exit status, and the result of each job in order."""
        status, output = self.gpu("run", "--out", self.out, "--shards", "2",
                                  *words, **environment)
        self.assertIn("gpu.sh: ", output)
        self.summary = json.loads((self.out / "summary.json").read_text())
        jobs = [(row["job"], row["result"]) for row in self.summary["jobs"]]
        for job, result in jobs:
            self.assertIn(f"gpu.sh: {job}: {result}, ", output)
        return status, jobs

    def calls(self, pattern):
        return [line for line in self.log.read_text().splitlines()
                if re.search(pattern, line)]

    def result_files(self):
        commit = self.git("rev-parse", "HEAD")[:7]
        begin = "h100-80gb-hbm3_" + time.strftime("%Y-%m-%d", time.gmtime())
        names = {path.name for path in self.out.iterdir()}
        return {name.removeprefix(f"{begin}_{commit}_") for name in names
                if name.startswith(f"{begin}_{commit}_")}

    def commit_results(self):
        results = self.root / "bench/results"
        results.mkdir(parents=True, exist_ok=True)
        for path in self.out.glob("h100*"):
            shutil.copy(path, results)
        self.commit("results")


class GpuScriptTest(Checkout):
    def test_all_jobs_run_in_order(self):
        status, jobs = self.run_jobs()
        self.assertEqual(jobs, [(job, "ok") for job in JOBS])
        self.assertEqual(status, 0)
        self.assertEqual(self.summary["device"], "h100-80gb-hbm3")
        self.assertEqual(self.summary["commit"], self.git("rev-parse", "HEAD"))
        self.assertLessEqual(
            {f"{job}.source" for job in JOBS} |
            {"figures.json", "figures.txt", "kernels.json",
             "compare_ours.json", "compare_pytorch.json",
             "profiles_gpt-oss-20b.json", "layouts_nhd-pairs.json"},
            self.result_files())
        self.assertEqual(len(self.calls("^kernels_gpu_test --gtest")), 4)
        self.assertEqual(
            len(self.calls("^blockmgr-bench kernels --check --output")), 1)
        self.assertEqual(
            len(self.calls(r"--lengths \S*llama-3.1-8b-instruct_a.npy --lengths "
                           r"\S*_b.npy --group-size 4 --head-dim 128")), 1)
        self.assertEqual(
            len(self.calls(r"kernels --check --lengths \S*gpt-oss-20b_a.npy "
                           r"--group-size 8 --head-dim 64 --output")), 1)

    def test_a_job_that_fails_fails_the_run(self):
        status, jobs = self.run_jobs("figures", "kernels", FAIL="--check --output")
        self.assertEqual(jobs, [("figures", "FAILED"), ("kernels", "ok")])
        self.assertEqual(status, 1)
        self.assertIn("broken", (self.out / "figures.log").read_text())
        self.assertNotIn("figures.source", self.result_files())

    def test_named_jobs_run_in_the_order_of_their_names(self):
        _, jobs = self.run_jobs("kernels", "figures")
        self.assertEqual(jobs, [("kernels", "ok"), ("figures", "ok")])

    def test_a_missing_rival_is_said_and_harms_nothing(self):
        status, _ = self.run_jobs("compare", FAIL="flashinfer")
        self.assertEqual(status, 0)
        self.assertNotIn("compare_flashinfer.json", self.result_files())
        self.assertIn("broken", (self.out / "compare.log").read_text())
        status, _ = self.run_jobs("compare", FAIL="compare_pytorch")
        self.assertEqual(status, 1)

    def test_jobs_with_committed_results_are_up_to_date(self):
        self.run_jobs("figures", "python")
        self.commit_results()
        # Documents are measured by nobody.
        (self.root / "docs/a.md").write_text("two")
        self.commit("docs")
        status, jobs = self.run_jobs()
        self.assertEqual(dict(jobs)["figures"], "up to date")
        self.assertEqual(dict(jobs)["python"], "up to date")
        self.assertEqual(dict(jobs)["kernels"], "ok")
        self.assertEqual(status, 0)
        # It runs if somebody asks for it.
        self.assertEqual(self.run_jobs("figures")[1], [("figures", "ok")])
        # Another device has no results.
        _, jobs = self.run_jobs(GPU="NVIDIA H200")
        self.assertEqual(dict(jobs)["figures"], "ok")
        # Changes count before they are committed.
        (self.root / "python/a.py").write_text("two")
        _, jobs = self.run_jobs()
        self.assertEqual(dict(jobs)["figures"], "up to date")
        self.assertEqual(dict(jobs)["python"], "ok")
        self.assertRegex(self.summary["commit"], "-dirty$")
        # New files, too.
        self.git("checkout", "--quiet", "python")
        (self.root / "kernels/b.cu").write_text("one")
        _, jobs = self.run_jobs()
        self.assertEqual(dict(jobs)["figures"], "ok")

    def test_a_failed_job_is_not_up_to_date(self):
        self.run_jobs("figures", FAIL="--check --output")
        self.commit_results()
        _, jobs = self.run_jobs()
        self.assertEqual(dict(jobs)["figures"], "ok")

    def test_what_is_served_is_simulated(self):
        status, _ = self.run_jobs("model")
        self.assertEqual(status, 0)
        # Nine tenths of 80,000 MiB, without weights, in blocks of 2 MiB.
        self.assertEqual(len(self.calls(
            "^blockmgr-engine .*--mode llama --backend cuda --random-weights "
            "llama-3.1-8b --num-blocks 28300 ")), 1)
        served, simulated = ([re.search(r"--label (\S+) ", line)[1]
                              for line in self.calls(
                                  f"^blockmgr-bench {word} .*--label")]
                             for word in ("serve", "sim"))
        self.assertEqual(served[0], "model_one")
        self.assertEqual(served[1:], simulated)
        self.assertGreaterEqual(len(simulated), 8)
        for name in simulated:
            self.assertLessEqual({f"{name}.json", f"{name}_sim.json"},
                                 self.result_files())
        for line in self.calls("^blockmgr-bench sim .*--label"):
            self.assertIn(" --sim-flops 7 --num-blocks 28300 ", line)
        scheduler = re.search("--max-num-batched-tokens .*",
                              self.calls("^blockmgrd ")[0])[0]
        self.assertIn(scheduler, self.calls("^blockmgr-bench sim .*--label")[0])

    def test_a_workload_that_fails_leaves_the_others(self):
        status, _ = self.run_jobs("model", FAIL="serve .*closed_snapkv")
        self.assertEqual(status, 1)
        self.assertIn("model_closed_snapkv: no result",
                      (self.out / "model.log").read_text())
        self.assertIn("model_turns_full_sim.json", self.result_files())
        self.assertNotIn("model_closed_snapkv_sim.json", self.result_files())

    def test_an_engine_that_ends_is_not_waited_for(self):
        status, _ = self.run_jobs("model", CRASH="serve .*closed_keydiff")
        self.assertEqual(status, 1)
        self.assertIn("model_closed_keydiff: the engine has ended",
                      (self.out / "model.log").read_text())
        self.assertIn("model_closed_full_sim.json", self.result_files())
        self.assertNotIn("model_turns_full_sim.json", self.result_files())

    def test_an_engine_without_memory_is_not_begun(self):
        (self.folder / "tools/nvidia-smi").unlink()
        status, output = self.gpu("run", "--out", self.out, "model", "papers")
        self.assertEqual(status, 1)
        self.assertIn("expected a GPU with 22 GiB free", output)
        self.assertEqual(self.calls("^blockmgr-engine"), [])

    def test_a_model_of_a_file_answers(self):
        file = self.folder / "m.gguf"
        file.touch()
        self.assertEqual(self.run_jobs("--model", file, "model")[0], 0)
        self.assertEqual(
            len(self.calls(f"^blockmgr-bench generate .*--model {file} ")), 1)

    def test_the_archive_has_the_results(self):
        archive = self.folder / "all.tar.gz"
        self.run_jobs("--archive", archive, "figures")
        with tarfile.open(archive) as file:
            names = file.getnames()
        self.assertIn("out/summary.json", names)
        self.assertIn("out/figures.log", names)

    def test_a_bundle_has_hashes_results_and_lengths(self):
        self.run_jobs("figures")
        self.commit_results()
        for path in (self.root / "build/dev/bin").iterdir():
            shutil.copy("/bin/true", path)
        packed = self.folder / "bundle.tar.xz"
        status, output = self.gpu(
            "pack", "--built", "build/dev", "--lengths",
            self.root / "lengths/gpt-oss-20b_a.npy",
            self.root / "lengths/llama-3.1-8b-instruct_b.npy", "--output", packed)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"up to date: figures \w+ h100-80gb-hbm3\n")
        run("tar", "-C", self.folder, "-xf", packed)
        bundle = self.folder / "blockmgr-gpu"
        self.assertEqual({path.name for path in (bundle / "lengths").iterdir()},
                         {"gpt-oss-20b_a.npy", "llama-3.1-8b-instruct_b.npy"})
        jobs = (bundle / "jobs.txt").read_text().splitlines()
        self.assertEqual([line.split()[0] for line in jobs], JOBS)
        hashes = dict(line.split()[:2] for line in jobs)
        self.assertEqual(hashes["memcheck"], hashes["racecheck"])
        self.assertEqual(len({hashes["figures"], hashes["python"],
                              hashes["model"]}), 3)
        (bundle / "bin/blockmgr-bench").write_text(PROGRAM)
        done = run(bundle / "gpu.sh", "run", "--out", self.out, "--time-limit",
                   "600", env={**self.environment, "FAIL": "gpu_test|engine"})
        results = {row["job"]: row["result"] for row in json.loads(
            (self.out / "summary.json").read_text())["jobs"]}
        self.assertEqual(results["figures"], "up to date", done.stdout)
        self.assertEqual(results["kernels"], "ok")
        # There is no wheel.
        self.assertEqual(results["python"], "FAILED")
        self.assertEqual(run(bundle / "gpu.sh", "pack").returncode, 2)

    def test_a_wheel_brings_its_tests(self):
        for path in (self.root / "build/dev/bin").iterdir():
            shutil.copy("/bin/true", path)
        wheel = self.folder / "blockmgr-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.write("/bin/true", "blockmgr/_core.abi3.so")
        (self.folder / "tools/python3").unlink()
        (self.folder / "tools/python3").symlink_to(sys.executable)
        packed = self.folder / "bundle.tar.xz"
        status, output = self.gpu("pack", "--built", "build/dev", "--output",
                                  packed, "--wheel", wheel)
        self.assertEqual(status, 0, output)
        run("tar", "-C", self.folder, "-xf", packed)
        (self.folder / "tools/python3").unlink()
        (self.folder / "tools/python3").write_text(
            PROGRAM + 'echo "${PYTHONPATH:-} ${BLOCKMGR_TEST_DEVICE:-}"')
        (self.folder / "tools/python3").chmod(0o755)
        bundle = self.folder / "blockmgr-gpu"
        self.assertTrue((bundle / "python/blockmgr/_core.abi3.so").exists())
        done = run(bundle / "gpu.sh", "run", "--out", self.out, "python",
                   env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(f"{bundle}/python cuda", done.stdout)
        tests = re.search("pytest .* (.*)", self.calls("pytest")[0])[1]
        self.assertTrue((pathlib.Path(tests) / "test_a.py").exists())

    def test_help_has_all_jobs(self):
        for words in (["--help"], ["run", "--help"], ["pack", "-h"]):
            status, output = self.gpu(*words)
            self.assertEqual(status, 0)
            self.assertEqual(re.findall(r"^  (\w+) +\d+ +\d+  ", output,
                                        re.MULTILINE), JOBS)
            self.assertNotRegex(output, r"(?m)^.{81}")

    def test_wrong_command_lines(self):
        for words in ([], ["tests"], ["run", "speed"], ["run", "--out"],
                      ["run", "--shards", "0"], ["run", "--time-limit", "x"],
                      ["run", "--model", "/missing.gguf", "model"],
                      ["run", "--built", "/missing"],
                      ["pack", "--built", "/missing"], ["pack", "now"],
                      ["pack", "--wheel", "/missing.whl"], ["pack", "--output"],
                      ["pack", "--lengths", SOURCE / "README.md"],
                      ["pack", "--trace", SOURCE / "README.md"]):
            status, output = self.gpu(*words)
            self.assertEqual(status, 2, (words, output))
            self.assertIn("gpu.sh --help", output)
        self.assertEqual(self.calls("gpu_test"), [])


class GpuLimitTest(Checkout):
    """What waits."""

    def test_the_limit_stops_a_job_and_keeps_what_it_has_measured(self):
        for stubborn in ("", "1"):
            status, jobs = self.run_jobs(
                "--time-limit", "12", "figures", "kernels", HANG="--check --output",
                STUBBORN=stubborn)
            self.assertEqual([job for job, _ in jobs], ["figures", "kernels"])
            self.assertEqual(jobs[0][1], "stopped at the limit")
            self.assertRegex(jobs[1][1], "^not started: -?[0-9]+ s left, takes")
            self.assertEqual(status, 1)
            self.assertIn("figures.json", self.result_files())
            self.assertNotIn("figures.source", self.result_files())
            for pid in (self.folder / "log.hung").read_text().split():
                self.assertFalse(is_running(pid))

    def test_the_limit_leaves_what_was_served(self):
        _, jobs = self.run_jobs("--time-limit", "20", "model",
                                HANG="serve .*long_full")
        self.assertEqual(jobs, [("model", "stopped at the limit")])
        self.assertIn("model_closed_snapkv_sim.json", self.result_files())
        self.assertTrue(self.calls("compare_sim.py table .*_closed_snapkv.json="
                                   ".*_model.json$"))
        self.assertFalse(is_running((self.folder / "log.hung").read_text()))

    def test_a_signal_ends_the_job_and_keeps_results(self):
        process = subprocess.Popen(
            [self.root / "scripts/gpu.sh", "run", "--out", self.out, "figures",
             "kernels"], env={**self.environment, "HANG": "kernels --num-samples"},
            stdout=subprocess.DEVNULL)
        hung = self.folder / "log.hung"
        while not hung.exists() or not hung.read_text().strip():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), 143)
        deadline = time.monotonic() + 20
        while is_running(hung.read_text().strip()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual(summary["jobs"][0]["result"], "ok")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
