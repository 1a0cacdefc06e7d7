#!/usr/bin/env python3
"""Counts the tests that CTest has run, and names those that failed and those
that skipped themselves.

A test of CTest that is a shard of a GoogleTest program wrote the results of its
tests to a file; they are counted one by one. Any other test of CTest is one
test. A shard that ended before it wrote its file counts as one failure, named
after the test that it was running; so does one that wrote no failure and ended
badly all the same (a leak, a time limit)."""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ET


def read_shard(path):
    """(passed, names of failed tests, names of skipped tests) of a GoogleTest
    report. Disabled tests are none of these."""
    passed, failed, skipped = 0, [], []
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f'{case.get("classname")}.{case.get("name")}'
        result = case.get("result", "completed")
        if case.find("failure") is not None:
            failed.append(name)
        elif case.get("status") == "run" and result == "completed":
            passed += 1
        elif result == "skipped":
            skipped.append(name)
    return passed, failed, skipped


def running_test(output):
    """The test that a GoogleTest program was in when its output ended."""
    begun = None
    for line in output.splitlines():
        match = re.match(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^ ,]+)", line)
        if match:
            begun = match[2] if match[1] == "RUN" else None
    return begun


def count(junit, shards):
    """(passed, failed tests, skipped tests) of CTest's report and of the folder
    of shards."""
    passed, failed, skipped = 0, [], []
    for case in ET.parse(junit).getroot().iter("testcase"):
        name = case.get("name")
        left_out = case.find("skipped")
        if left_out is not None and left_out.get("message").startswith("SKIP_"):
            skipped.append(name)  # by itself; others could not be run
            continue
        ran_well = case.get("status") == "run"
        report = shards / f"{name}.xml"
        bad = []
        if report.exists():
            good, bad, left_out = read_shard(report)
            passed += good
            failed += [f"{name}: {test}" for test in bad]
            skipped += [f"{name}: {test}" for test in left_out]
        elif ran_well:
            passed += 1
        if not ran_well and not bad:
            running = running_test(case.findtext("system-out") or "")
            failed.append(f"{name}: in {running}" if running else name)
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=pathlib.Path,
                        help="what ctest --output-junit has written")
    parser.add_argument("shards", type=pathlib.Path,
                        help="the folder of the shards' reports, NAME.xml each")
    arguments = parser.parse_args()
    passed, failed, skipped = count(arguments.junit, arguments.shards)
    for name in skipped:
        print(f"SKIPPED {name}")
    for name in failed:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed > 0 and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
