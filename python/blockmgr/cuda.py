"""The CUDA kernels on tensors of PyTorch, CuPy, JAX and others (DLPack).

    from blockmgr import cuda

    kernels = cuda.CudaKernels(layout, pool)   # pool: a tensor on a GPU
    kernels.append(layer, slot_mapping, keys, values, stream=stream)

CudaKernels has the launchers. Importing this module works everywhere. Without
the kernels, a driver or a GPU, is_available() is False, and CudaKernels raises
UnavailableError, which says what is missing. docs/python.md has an example.
"""
import typing

from blockmgr import _core
from blockmgr._core import (AttentionLists, CudaKernels, EntryLists, EntryPlan,
                            FutureQueries, IndexPlan, PrefillPlan,
                            SelectionPlan)


class Tensor(typing.Protocol):
    """A tensor on a CUDA device that another library hands out by DLPack."""

    def __dlpack__(self, *, stream: typing.Any = ...) -> typing.Any:
        ...

    def __dlpack_device__(self) -> typing.Tuple[typing.Any, typing.Any]:
        ...


class CudaStream(typing.Protocol):
    """A stream of cuda.core, CuPy and others: __cuda_stream__() is (0, cudaStream_t)."""

    def __cuda_stream__(self) -> typing.Tuple[int, int]:
        ...


class TorchStream(typing.Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        ...


#: A cudaStream_t as an int (0: the default stream), or an object that has one.
Stream = typing.Union[int, CudaStream, TorchStream]


def is_available() -> bool:
    """Whether there are CUDA kernels, a driver and a device."""
    return _core._why_no_cuda() is None


def why_unavailable() -> typing.Optional[str]:
    """What is missing, or None."""
    error = _core._why_no_cuda()
    return None if error is None else str(error)


__all__ = [
    "AttentionLists", "CudaKernels", "CudaStream", "EntryLists", "EntryPlan",
    "FutureQueries", "IndexPlan", "PrefillPlan", "SelectionPlan", "Stream",
    "Tensor", "TorchStream", "is_available", "why_unavailable"
]
