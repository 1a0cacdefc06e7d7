"""Tensors on a CUDA device for tests, without a library that has any.

A tensor is memory of numpy, or managed memory of CUDA, which Python reads and writes
as numpy arrays, and which is handed out by DLPack as memory of a device.
"""
import ctypes

import numpy as np

CUDA, CUDA_MANAGED, CPU = 2, 13, 1
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h lays it out."""
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device),
                ("ndim", ctypes.c_int32), ("dtype", _DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p),
                ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", _Deleter),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_exported = {}  # by address: what lives until the consumer lets go of it


@_Deleter
def _let_go(address):
    del _exported[address]


def num_exported():
    """How many tensors consumers hold."""
    return len(_exported)


def _host_memory(num_bytes):
    memory = np.zeros(num_bytes + 256, np.uint8)
    begin = -memory.ctypes.data % 256
    return memory[begin:begin + num_bytes]


#: Returns so many bytes as a numpy array, aligned to 256. Tests on a GPU replace it.
allocate = _host_memory


def bfloat16_bits(values):
    """float32 -> the bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class DeviceTensor:
    """A tensor of a producer. `array` is its memory; bfloat16 is uint16 there."""

    def __init__(self, array, *, bfloat=False, place=(CUDA, 0), dtype=None,
                 read_only=False, versions=True, shape=None):
        self.array = array
        self.place = place
        self.read_only = read_only
        self.versions = versions
        self.dtype = dtype or (_BFLOAT if bfloat else _CODES[array.dtype.kind],
                               8 * array.itemsize, 1)
        self.shape = array.shape if shape is None else shape
        self.streams = []  # that consumers have asked for

    @classmethod
    def of(cls, values, **more):
        """A copy of values in memory of its own."""
        values = np.asarray(values)
        memory = allocate(values.nbytes).view(values.dtype)
        memory = memory.reshape(values.shape)
        memory[...] = values
        return cls(memory, **more)

    def __getitem__(self, index):
        return self.view(self.array[index])

    def view(self, array):
        """Another array on the same memory."""
        return DeviceTensor(array, dtype=self.dtype, place=self.place)

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, *, stream=None, **more):
        self.streams.append(stream)
        if more and not self.versions:
            raise TypeError("unexpected keyword argument")
        itemsize = self.array.itemsize
        ndim = len(self.shape)
        sizes = (ctypes.c_int64 * max(1, ndim))(*self.shape)
        strides = (ctypes.c_int64 * max(1, ndim))(
            *(step // itemsize for step in self.array.strides))
        tensor = _Tensor(data=self.array.ctypes.data, device=_Device(*self.place),
                         ndim=ndim, dtype=_DataType(*self.dtype), shape=sizes,
                         strides=strides)
        if more:
            managed = _Versioned(major=1, deleter=_let_go, tensor=tensor,
                                 flags=int(self.read_only))
        else:
            managed = _Managed(deleter=_let_go, tensor=tensor)
        address = ctypes.addressof(managed)
        _exported[address] = (managed, sizes, strides, self.array)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(address, b"dltensor_versioned" if more else b"dltensor", None)
