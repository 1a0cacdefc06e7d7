"""scripts/test_results.py on reports as CTest and GoogleTest write them."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "test_results.py"


def results(cases, shards):
    """What the script prints for the test cases of CTest (XML) and the
    reports of shards (XML by name), and how it ends."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
        for name, tests in shards.items():
            (folder / f"{name}.xml").write_text(
                f'<testsuites><testsuite name="S">{tests}</testsuite></testsuites>')
        done = subprocess.run(
            [sys.executable, SCRIPT, folder / "ctest.xml", folder],
            capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.stdout.splitlines(), done.returncode


def case(name, status, inside=""):
    return f'<testcase name="{name}" status="{status}">{inside}</testcase>'


def test(name, status="run", result="completed", inside=""):
    return (f'<testcase name="{name}" status="{status}" result="{result}" '
            f'classname="S">{inside}</testcase>')


class TestResults(unittest.TestCase):
    def test_counts_the_tests_of_a_shard_and_others_once(self):
        self.assertEqual(
            results(case("a_1_of_2", "run") + case("script", "run"),
                    {"a_1_of_2": test("x") + test("y")}),
            (["3 passed, 0 failed"], 0))

    def test_names_every_test_that_failed_in_a_shard(self):
        self.assertEqual(
            results(case("a_1_of_1", "fail"),
                    {"a_1_of_1": test("x") + test("y", inside="<failure/>")
                                 + test("z", inside="<failure/><failure/>")}),
            (["FAILED a_1_of_1: S.y", "FAILED a_1_of_1: S.z",
              "1 passed, 2 failed"], 1))

    def test_names_skipped_tests_and_leaves_out_disabled_ones(self):
        skipped = '<skipped message="SKIP_RETURN_CODE=77"/>'
        self.assertEqual(
            results(case("a", "run") + case("s", "notrun", skipped),
                    {"a": test("x") + test("y", result="skipped")
                          + test("z", status="notrun", result="suppressed")}),
            (["SKIPPED a: S.y", "SKIPPED s", "1 passed, 0 failed"], 0))

    def test_a_shard_that_crashed_fails_once_and_names_the_running_test(self):
        output = ("<system-out>[ RUN      ] S.x\n[       OK ] S.x (1 ms)\n"
                  "[ RUN      ] S.y\nSegmentation fault</system-out>")
        self.assertEqual(
            results(case("a", "fail", output) + case("b", "run"), {}),
            (["FAILED a: in S.y", "1 passed, 1 failed"], 1))

    def test_a_bad_end_after_good_tests_is_a_failure(self):
        self.assertEqual(
            results(case("a", "fail", "<system-out>leak</system-out>"),
                    {"a": test("x")}),
            (["FAILED a", "1 passed, 1 failed"], 1))

    def test_what_could_not_be_run_failed(self):
        gone = '<skipped message="Unable to find executable"/>'
        self.assertEqual(
            results(case("a", "notrun", gone) + case("b", "disabled"), {}),
            (["FAILED a", "FAILED b", "0 passed, 2 failed"], 1))

    def test_nothing_is_no_success(self):
        self.assertEqual(results("", {}), (["0 passed, 0 failed"], 1))


if __name__ == "__main__":
    unittest.main()
