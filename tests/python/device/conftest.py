"""The device of these tests: the emulator of the CUDA kernels, whose device memory is
the host's, or with BLOCKMGR_TEST_DEVICE=cuda the GPU, with managed memory."""
import ctypes
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import blockmgr._core  # noqa: E402
import device_tensors  # noqa: E402

if os.environ.get("BLOCKMGR_TEST_DEVICE") == "cuda":
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(driver, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)

    def managed(num_bytes):
        address = ctypes.c_void_p()
        call("cuMemAllocManaged", ctypes.byref(address),
             ctypes.c_size_t(max(1, num_bytes)), 1)
        memory = (ctypes.c_uint8 * num_bytes).from_address(address.value)
        return np.frombuffer(memory, np.uint8)

    device_tensors.allocate = managed
else:
    # Where scripts/python.sh has built it.
    sys.path.insert(0, os.environ["BLOCKMGR_EMULATOR"])
    import _emulator
    blockmgr._core._set_cuda_devices(_emulator.devices())
