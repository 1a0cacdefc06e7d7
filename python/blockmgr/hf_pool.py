"""BlockPool: blocks for the caches of blockmgr.hf, on the CPU or a GPU."""
import threading

import torch

import blockmgr
from blockmgr.errors import InvalidArgumentError, ResourceExhaustedError
from blockmgr.hf_backends import backend_of

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16",
          torch.float16: "float16"}


def layout_of(config, num_tokens, dtype=None, page_size=16):
    """The KvLayout of a pool in which num_tokens fit, for a model's config."""
    config = config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise InvalidArgumentError(
            f"config: expected layers of full attention, got {sorted(kinds)}")
    dtype = dtype or config.dtype or torch.get_default_dtype()
    if dtype not in DTYPES:
        raise InvalidArgumentError(
            f"dtype: expected one of {', '.join(map(str, DTYPES))}, got {dtype}")
    if num_tokens < 1 or page_size < 1:
        raise InvalidArgumentError(
            f"num_tokens, page_size: expected at least 1, got {num_tokens} and "
            f"{page_size}")
    num_q_heads = config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or num_q_heads
    head_dim = (getattr(config, "head_dim", None) or
                config.hidden_size // num_q_heads)
    return blockmgr.KvLayout(
        num_layers=config.num_hidden_layers, num_heads=num_heads,
        num_q_heads=num_q_heads, head_dim=head_dim, page_size=page_size,
        num_blocks=-(-num_tokens // page_size) + 1, dtype=DTYPES[dtype])


class BlockPool:
    """Blocks in one tensor, for any number of caches, each of one thread.

    A block has room for page_size tokens in all layers and heads. num_tokens is the
    number of tokens that fit if nothing is evicted; every sequence rounds up to whole
    blocks. device is where the model's keys and values are, "cpu" or a CUDA device.
    On the CPU, memory that was never used costs address space only, and num_threads
    threads compute (default: torch.get_num_threads()). On a GPU all of the memory is
    allocated, and all caches of a pool must be used on the same stream.
    """

    def __init__(self, config, num_tokens, *, dtype=None, page_size=16,
                 device="cpu", num_threads=None):
        self.layout = layout_of(config, num_tokens, dtype, page_size)
        layout = self.layout
        device = torch.device(device)
        backend = backend_of(device)
        torch_dtype = next(key for key, name in DTYPES.items()
                           if name == layout.dtype)
        #: [num_layers, num_blocks, num_heads, 2 (K, V), page_size, head_dim]
        self.kv = torch.empty(
            (layout.num_layers, layout.num_blocks, layout.num_heads, 2,
             layout.page_size, layout.head_dim), dtype=torch_dtype,
            device=device)
        self.backend = backend(layout, self.kv, num_threads)
        self._free = list(range(layout.num_blocks - 1, 0, -1))  # 0 is null
        # Reentrant: a cache may be collected, and give, while another one takes.
        self._lock = threading.RLock()
        #: The largest number of blocks that were in use at once.
        self.peak_blocks = 0

    @property
    def used_blocks(self):
        """The number of blocks that caches hold."""
        return self.layout.num_blocks - 1 - len(self._free)

    @property
    def used_bytes(self):
        """The bytes of these blocks."""
        return self.used_blocks * self.layout.block_bytes

    @property
    def peak_bytes(self):
        """The bytes of peak_blocks."""
        return self.peak_blocks * self.layout.block_bytes

    def take(self, count):
        """Returns the ids of so many free blocks."""
        with self._lock:
            if count > len(self._free):
                raise ResourceExhaustedError(
                    f"pool: {count} more blocks of {self.layout.page_size} tokens "
                    f"are needed, {len(self._free)} of "
                    f"{self.layout.num_blocks - 1} are free; make the pool with "
                    "more num_tokens, or drop a cache")
            taken = [self._free.pop() for _ in range(count)]
            self.peak_blocks = max(self.peak_blocks, self.used_blocks)
            return taken

    def give(self, blocks):
        """Takes blocks back."""
        with self._lock:
            self._free.extend(blocks)
