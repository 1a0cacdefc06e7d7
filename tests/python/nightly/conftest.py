"""What these tests need beyond the package (scripts/python.sh --torch).

What attends in nano_engine.py: PyTorch, or the CUDA kernels, either on their emulator,
of the folder BLOCKMGR_TEST_MODULES, or with BLOCKMGR_TEST_DEVICE=cuda on a GPU (run
test_nano_engine.py alone there: the default device of PyTorch is the GPU).
"""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "examples/python"), str(ROOT / "tests/python")]

import torch  # noqa: E402

import nano_kernels  # noqa: E402

KERNELS, DTYPE = None, "float32"
if os.environ.get("BLOCKMGR_TEST_DEVICE") == "cuda":
    KERNELS, DTYPE = nano_kernels.use_gpu()
elif "BLOCKMGR_TEST_MODULES" in os.environ:
    sys.path.insert(0, os.environ["BLOCKMGR_TEST_MODULES"])
    from torch_emulator import EmulatedKernels

    class EmulatedAttention(nano_kernels.KernelAttention):
        launchers = EmulatedKernels
        stream = staticmethod(lambda: 0)

    KERNELS, DTYPE = EmulatedAttention, "bfloat16"


def tolerance(exact, rounded):
    """What a result may differ by, if K and V are in float32, and if in bfloat16."""
    return exact if KERNELS is None else rounded


# Threads that wait for each other take long on a machine that is busy.
torch.set_num_threads(1)
