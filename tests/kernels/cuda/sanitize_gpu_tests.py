#!/usr/bin/env python3
"""Runs a command of compute-sanitizer for CTest, which skips on a text even if
the command failed.

  sanitize_gpu_tests.py COMMAND ARGUMENTS...

Exits with what the command exits with; with 77 instead, which is a skip, where
it found nothing for there is no device, or the tool does not know the one that
is there.
"""
import os
import subprocess
import sys

SKIPPED = 77
FOUND_ERRORS = 99  # --error-exitcode of all runs
# Of tests/testing/gpu_test.h: the tests have skipped themselves. An error of
# the runtime reads otherwise.
NO_DEVICE = "no GPU: the CUDA runtime finds no device"
# Of the tool, with which tests may fail or not.
UNKNOWN_DEVICE = "Device not supported"


def outcome(code, no_device, unknown_device):
    """What to exit with after the command did with `code`."""
    if code == FOUND_ERRORS:
        return code
    if unknown_device or (code == 0 and no_device):
        return SKIPPED
    return code if 0 <= code < 256 else 1  # below 0: a signal


# On small sizes, for the tools are some hundred times slower. A forked child of a
# test of an abort would be checked too.
ENVIRONMENT = {
    "BLOCKMGR_TEST_SMALL": "1",
    "GTEST_FILTER": "-*Abort*:*Failure*:*Shortage*:*RefusesLayouts*:"
                    "*FullDevice*:*OffsetsBeyond*:*LargePool*",
}


def main():
    no_device, unknown_device = False, False
    # Line by line: CTest shows what there is of a run that takes too long.
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True,
                          env=os.environ | ENVIRONMENT) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            no_device |= line.strip() == NO_DEVICE
            unknown_device |= (line.startswith("=====") and
                               UNKNOWN_DEVICE in line)
    sys.exit(outcome(run.returncode, no_device, unknown_device))


if __name__ == "__main__":
    main()
