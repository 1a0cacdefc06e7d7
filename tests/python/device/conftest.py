"""The device of these tests, by BLOCKMGR_TEST_DEVICE:

emulator     (default) the kernels as C++; device memory is the host's
interpreter  what nvcc makes of the kernels, behind a part of CUDA's runtime
cuda         the GPU, with managed memory

scripts/python.sh builds the first two, of a build folder that has them, into the
folder BLOCKMGR_TEST_MODULES.
"""
import ctypes
import os
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
DEVICE = os.environ.get("BLOCKMGR_TEST_DEVICE", "emulator")
if DEVICE != "cuda":
    sys.path.insert(0, os.environ["BLOCKMGR_TEST_MODULES"])

import blockmgr._core  # noqa: E402
import device_tensors  # noqa: E402

# The emulator has neither streams nor graphs, and counts what others do not.
collect_ignore = ["test_graphs.py" if DEVICE == "emulator" else "test_waits.py"]


def array_at(address, num_bytes):
    memory = (ctypes.c_uint8 * num_bytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


class CudaDriver:
    """Memory, streams and graphs of a GPU."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def make(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle.value

    def allocate(self, num_bytes):
        return self.make("cuMemAllocManaged", ctypes.c_size_t(num_bytes), 1)

    def make_stream(self):
        return self.make("cuStreamCreate", 1)

    def begin_capture(self, stream):
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)

    def end_capture(self, stream):
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream),
                  ctypes.byref(graph))
        return self.make("cuGraphInstantiateWithFlags", graph,
                         ctypes.c_ulonglong(0))

    def launch(self, graph, stream):
        self.call("cuGraphLaunch", ctypes.c_void_p(graph),
                  ctypes.c_void_p(stream))


if DEVICE == "emulator":
    import _emulator
    blockmgr._core._set_cuda_devices(_emulator.devices())
else:
    if DEVICE == "cuda":
        driver = CudaDriver()
    else:
        import _interpreter as driver
        blockmgr._core._set_cuda_devices(driver.devices())
    device_tensors.allocate = lambda num_bytes: array_at(
        driver.allocate(max(1, num_bytes)), num_bytes)

    @pytest.fixture
    def runtime():
        return driver
