"""CudaBackend on the emulator."""
from blockmgr.hf_backends import CudaBackend
from torch_emulator import EmulatedKernels


class EmulatedBackend(CudaBackend):
    """Counts the copies to the device and from it."""

    stream = 0

    def _make_kernels(self):
        self.num_sent = self.num_fetched = 0
        return EmulatedKernels(self._layout, self._kv)

    def _upload(self, memory):
        self.num_sent += 1
        return memory.clone()

    def fetch(self, tensor):
        self.num_fetched += 1
        return super().fetch(tensor)
