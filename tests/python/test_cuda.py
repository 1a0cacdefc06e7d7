"""blockmgr.cuda without a device: what is missing, and what is refused first."""
import ctypes
import subprocess
import sys

import numpy as np
import pytest

import blockmgr
from blockmgr import cuda
from device_tensors import DeviceTensor

FIELDS = dict(num_layers=2, num_heads=2, num_q_heads=4, head_dim=64,
              num_blocks=4, dtype="float16")
LAYOUT = blockmgr.KvLayout(**FIELDS)
SHAPE = (2, 4, 2, 2, 16, 64)


def test_it_says_what_is_missing():
    why = cuda.why_unavailable()
    assert (why is None) == cuda.is_available()
    pool = DeviceTensor.of(np.zeros(SHAPE, np.float16))
    if why is None:
        return
    assert why.startswith("blockmgr.cuda: expected a")
    assert "without them, because nvcc" in why or "its driver, found none" in why
    with pytest.raises(blockmgr.UnavailableError) as raised:
        cuda.CudaKernels(LAYOUT, pool)
    assert str(raised.value) == why


def test_importing_it_loads_no_driver():
    script = ("import blockmgr.cuda, re; "
              "assert 'libcuda' not in open('/proc/self/maps').read()")
    subprocess.run([sys.executable, "-c", script], check=True)


def test_layouts_without_kernels_are_refused():
    pool = DeviceTensor.of(np.zeros(SHAPE, np.float16))
    for more, text in ((dict(dtype="float32"), "dtype: expected bfloat16"),
                       (dict(head_dim=80), "head_dim: expected 64, 128 or 256"),
                       (dict(page_size=8), "page_size: expected 16 or 32"),
                       (dict(num_q_heads=64), "num_q_heads / num_heads"),
                       (dict(num_shards=2), "num_shards"),
                       (dict(window=32), "sliding windows")):
        layout = blockmgr.KvLayout(**{**FIELDS, **more})
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            cuda.CudaKernels(layout, pool)
    with pytest.raises(TypeError):
        cuda.CudaKernels(3, pool)


def test_pools_that_are_not_the_layouts_are_refused():
    array = np.zeros(SHAPE, np.float16)
    pool = DeviceTensor.of(array)
    wide = DeviceTensor.of(np.zeros((*SHAPE[:5], 128), np.float16))
    odd = DeviceTensor.of(np.zeros(array.size + 68, np.float16))
    padded = np.lib.stride_tricks.as_strided(odd.array, SHAPE,
                                             [*array.strides[:4], 136, 2])
    repeated = np.lib.stride_tricks.as_strided(
        pool.array, SHAPE, [0, *array.strides[1:]])
    layers = [pool[0], pool[1]]
    for wrong, text in (
            (array, "pool: expected a tensor on a CUDA device, got one on the "
             "CPU"),
            (pool[0], r"expected the shape \[2, 4, 2, 2, 16, 64\]"),
            (DeviceTensor.of(array[:1]), "expected the shape"),
            (DeviceTensor(pool.array, shape=(-2, 4, 2, -2, 16, 64)),
             "expected the shape"),
            (wide[..., ::2], "contiguous dimensions from 5 on"),
            (odd.view(padded), "multiples of 16 bytes, got 136"),
            (odd.view(odd.array[4:4 + array.size].reshape(SHAPE)),
             "aligned to 16"),
            (pool.view(repeated), "strides above 0"),
            (pool[::-1], "strides above 0"),
            (DeviceTensor(pool.array, place=(1, 0)), "on the CPU"),
            (DeviceTensor(pool.array, place=(10, 0)), "of type 10"),
            (DeviceTensor(pool.array, place=(2, -1)), "expected a tensor on a"),
            (DeviceTensor(pool.array, read_only=True), "read-only"),
            (layers[:1], "pool: expected 2 tensors"),
            ([], "pool: expected 2 tensors"),
            ([*layers, pool[0]], "pool: expected 2 tensors"),
            ([pool[0], wide[1][..., :64]], r"pool\[1\]: expected the strides"),
            ([pool[0], DeviceTensor(pool.array[1], place=(2, 1))],
             r"pool\[1\]: expected a tensor on CUDA device 0, got .* 1")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            cuda.CudaKernels(LAYOUT, wrong)
    capsule = pool.__dlpack__(stream=-1)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor")
    for wrong in (DeviceTensor(pool.array, bfloat=True),
                  DeviceTensor.of(np.zeros(SHAPE, np.float32)),
                  DeviceTensor(pool.array, dtype=(2, 16, 2)),
                  DeviceTensor(pool.array, dtype=(77, 16, 1)), None, 3, "pool",
                  DeviceTensor, [None, None], capsule, array.tolist(), object()):
        with pytest.raises(TypeError, match="pool"):
            cuda.CudaKernels(LAYOUT, wrong)


def test_errors_of_the_producer_are_its_own():

    class Broken(DeviceTensor):

        def __dlpack__(self, **_):
            raise BufferError("needs gradients")

    class Lost(DeviceTensor):

        def __dlpack_device__(self):
            return "cuda"

    class Liar(DeviceTensor):

        def __dlpack_device__(self):
            return (2, 0)

    array = np.zeros(SHAPE, np.float16)
    with pytest.raises(BufferError, match="needs gradients"):
        cuda.CudaKernels(LAYOUT, Broken(array))
    with pytest.raises(TypeError, match="pool"):
        cuda.CudaKernels(LAYOUT, Lost(array))
    with pytest.raises(blockmgr.InvalidArgumentError, match="on the CPU"):
        cuda.CudaKernels(LAYOUT, Liar(array, place=(1, 0)))
