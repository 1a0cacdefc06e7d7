"""CudaKernels on the emulator, with PyTorch's tensors on the CPU as device memory.

Needs the folder of the emulator's module on Python's path (scripts/python.sh).
"""
import _emulator
import torch

import blockmgr._core
from blockmgr import cuda
from device_tensors import DeviceTensor

blockmgr._core._set_cuda_devices(_emulator.devices())
_BFLOAT16 = (4, 16, 1)


def on_device(value):
    """A tensor as blockmgr.cuda takes it, and anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bfloat16:
        return DeviceTensor(value.detach().view(torch.int16).numpy(),
                            dtype=_BFLOAT16)
    return DeviceTensor(value.detach().numpy())


class EmulatedKernels:
    """CudaKernels whose methods take PyTorch's tensors on the CPU."""

    def __init__(self, layout, pool):
        self._kernels = cuda.CudaKernels(layout, on_device(pool))

    def __getattr__(self, name):
        method = getattr(self._kernels, name)

        def call(*arguments, **fields):
            return method(*map(on_device, arguments),
                          **{key: on_device(value)
                             for key, value in fields.items()})

        return call
