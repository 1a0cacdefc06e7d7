"""The device of these tests, by BLOCKMGR_TEST_DEVICE:

emulator  (default) the CUDA kernels as C++. A tensor on the CPU stands for one on a GPU
cuda      the GPU

The emulator's module is in the folder BLOCKMGR_TEST_MODULES (scripts/python_hf.sh).
"""
import os
import pathlib
import sys

TESTS = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "python_hf"), str(TESTS / "python")]
if os.environ.get("BLOCKMGR_TEST_DEVICE", "emulator") == "emulator":
    sys.path.insert(0, os.environ["BLOCKMGR_TEST_MODULES"])
    from blockmgr import hf_backends
    from emulated import EmulatedBackend
    hf_backends.BACKENDS["cpu"] = EmulatedBackend
