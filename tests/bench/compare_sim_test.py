#!/usr/bin/env python3
"""bench/compare_sim.py on reports that are made up."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "bench",
                      "compare_sim.py")


class CompareSimTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, report):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)
        return path

    def run_script(self, *words):
        return subprocess.run([sys.executable, SCRIPT, *words],
                              capture_output=True, text=True, check=False)

    def report(self, name, in_flight, rate, ttft, tpot, **more):
        return self.write(name, {
            "label": name, "mean_requests_in_flight": in_flight,
            "output_throughput": rate, "mean_ttft_ms": ttft,
            "mean_tpot_ms": tpot, "max_used_blocks": 77, **more})

    def calibration(self, **changes):
        return self.write("one.json", {
            "random_input_len": 1000, "random_output_len": 100,
            "random_range_ratio": 0, "max_concurrency": 1,
            "median_ttft_ms": 53.001, "median_tpot_ms": 20.168, **changes})

    def ceilings(self):
        return self.write("ceilings.json", {"results": [
            {"kernel": "read_ceiling", "gb_per_s": 900.0},
            {"kernel": "read_ceiling", "gb_per_s": 1000.0},
            {"kernel": "decode", "gb_per_s": 500.0},
            {"kernel": "chunk", "gb_per_s": 0.0, "tflop_per_s": 80.08}]})

    def rates(self, calibration):
        return self.run_script(
            "rates", "--ceilings", self.ceilings(), "--calibration", calibration,
            "--layer-params", "8e9", "--output-params", "1e9", "--layers", "10",
            "--heads", "4", "--q-heads", "8", "--head-dim", "500")

    def test_rates_explain_the_calibration(self):
        done = self.rates(self.calibration())
        self.assertEqual(done.returncode, 0, done.stderr)
        words = done.stdout.split()
        rates = dict(zip(words[::2], map(float, words[1::2])))
        self.assertEqual(list(rates), [
            "--sim-bandwidth", "--sim-attention-bandwidth",
            "--sim-attention-flops", "--sim-step-overhead", "--sim-flops"])
        self.assertEqual(rates["--sim-bandwidth"], 1e12)
        self.assertEqual(rates["--sim-attention-bandwidth"], 5e11)
        self.assertEqual(rates["--sim-attention-flops"], 8.008e13)
        # A step reads 1.8e10 bytes of parameters in 18 ms, and 1,050 tokens of
        # 80 kB in 0.168 ms.
        self.assertAlmostEqual(rates["--sim-step-overhead"], 2e-3, places=9)
        # Attention, 4 * 500 * 10 * 8 * 500,500 FLOP, takes 1 ms. The rest of
        # 50 ms has 1.6e13 FLOP for the prompt and 2e9 for the first token.
        self.assertAlmostEqual(rates["--sim-flops"] / (1.6002e13 / 50.001e-3), 1,
                               places=5)

    def test_a_step_faster_than_the_ceiling_has_no_overhead(self):
        done = self.rates(self.calibration(median_tpot_ms=15.0))
        self.assertIn("--sim-step-overhead 0 ", done.stdout)

    def test_rates_refuse_other_runs(self):
        for changes, words in (
                ({"max_concurrency": 2}, "one at a time"),
                ({"random_range_ratio": 0.5}, "one at a time"),
                ({"random_input_len": None},
                 "random_input_len: expected a number, got null"),
                ({"median_ttft_ms": 1.0}, "median_ttft_ms: expected more")):
            done = self.rates(self.calibration(**changes))
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
        done = self.run_script(
            "rates", "--calibration", self.calibration(), "--ceilings",
            self.write("none.json", {"results": []}))
        self.assertIn("expected a read_ceiling", done.stderr)

    def test_the_table_says_what_is_within(self):
        good = self.report("good", 100, 2000, 300, 20)
        good_sim = self.report("good_sim", 115, 1700, 345, 17)
        bad = self.report("bad", 100, 2000, 300, 20)
        bad_sim = self.report("bad_sim", 100, 2000, 300, 23.1)
        output = os.path.join(self.folder, "table.json")
        done = self.run_script("table", f"{good}={good_sim}", f"{bad}={bad_sim}",
                               good, "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertIn("within 15 %", lines[0])
        self.assertEqual(lines[1].split(), ["good", "77", "100.0", "115.0",
                                            "2000", "1700", "300", "345",
                                            "20.00", "17.00", "yes"])
        self.assertEqual(lines[2].split()[-2:], ["23.10!", "no"])
        self.assertEqual(lines[3].split(), ["good", "77", "100.0", "2000", "300",
                                            "20.00"])
        with open(output, encoding="utf-8") as file:
            runs = json.load(file)["runs"]
        self.assertEqual([run.get("within") for run in runs],
                         [True, False, None])
        self.assertEqual(runs[1]["outside"], ["mean_tpot_ms"])
        done = self.run_script("table", "--percent", "20", f"{bad}={bad_sim}")
        self.assertTrue(done.stdout.endswith("yes\n"))

    def test_bad_files_are_named(self):
        for path, words in ((self.write("a.json", {"label": "a"}),
                             "a.json: mean_requests_in_flight: expected"),
                            (self.write("b.json", [1]), "b.json: expected a "),
                            (os.path.join(self.folder, "c.json"), "c.json")):
            done = self.run_script("table", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
