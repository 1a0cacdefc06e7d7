"""BlockmgrPress: a press of kvpress that selects with blockmgr. See blockmgr.hf."""
import dataclasses

import numpy as np
import torch
from kvpress.presses.base_press import BasePress
from kvpress.utils import get_prerope_query_states
from transformers.models.llama.modeling_llama import rotate_half

import blockmgr
from blockmgr.errors import InvalidArgumentError
from blockmgr.hf import checked_policy
from blockmgr.hf_backends import Eviction, backend_of
from blockmgr.hf_pool import DTYPES

_PAGE_SIZE = 16


@dataclasses.dataclass
class BlockmgrPress(BasePress):
    """Selects the entries of each head by a policy of blockmgr, layer by layer.

    On a BlockmgrCache the pages of the others are freed. On another cache kvpress
    masks the others. Budgets that compare layers are refused, as a press sees one.
    """

    policy: str = "keydiff | adakv | topk"
    keep_ratio: float = 0.5

    def __post_init__(self):
        self._checked()

    def _checked(self):
        """Returns the policy and the target of the fields, which may change."""
        policy = checked_policy(self.policy)
        if policy.budget[0] not in ("uniform", "adakv"):
            raise InvalidArgumentError(
                f"policy: expected a budget of one layer, uniform or adakv, got "
                f"{policy.budget[0]}")
        return policy, blockmgr.Target(ratio=self.keep_ratio)

    @property
    def compression_ratio(self):
        """As other presses say it: the share that goes."""
        return 1 - self.keep_ratio

    @compression_ratio.setter
    def compression_ratio(self, value):
        self.keep_ratio = 1 - value

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        """What kvpress calls: keys and values are [batch, heads, tokens, dim]."""
        if keys.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"keys: expected one of {', '.join(map(str, DTYPES))}, got "
                f"{keys.dtype}")
        policy, target = self._checked()
        pool = _Pool(module, keys, values)
        pool.backend.check_policy(policy)
        queries = self._last_queries(policy, module, hidden_states, kwargs)
        gone = ~torch.stack([pool.kept(i, policy, target, own)
                             for i, own in enumerate(queries)])
        module.masked_key_indices = torch.nonzero(gone.to(keys.device),
                                                  as_tuple=True)
        return keys, values

    @staticmethod
    def _last_queries(policy, module, hidden_states, kwargs):
        """Those that the scorer reads, of each sequence, or None for each."""
        count = min(policy.query_window, hidden_states.shape[1])
        if count == 0:
            return [None] * hidden_states.shape[0]
        queries = get_prerope_query_states(module, hidden_states[:, -count:])
        cos, sin = (table[:, -count:].unsqueeze(1)
                    for table in kwargs["position_embeddings"])
        queries = queries * cos + rotate_half(queries) * sin
        return queries.transpose(1, 2)


class _Pool:
    """A copy of one layer's keys and values, in pages, of all sequences."""

    def __init__(self, module, keys, values):
        batch, num_heads, self._num_tokens, head_dim = keys.shape
        self._num_pages = -(-self._num_tokens // _PAGE_SIZE)
        self._module = module
        self._layout = blockmgr.KvLayout(
            num_layers=1, num_heads=num_heads, head_dim=head_dim,
            num_q_heads=module.config.num_attention_heads,
            page_size=_PAGE_SIZE, num_blocks=batch * self._num_pages + 1,
            dtype=DTYPES[keys.dtype])
        # [batch, heads, 2, pages, page_size, dim], then as BlockPool.kv.
        padding = (0, 0, 0, self._num_pages * _PAGE_SIZE - self._num_tokens)
        pages = torch.nn.functional.pad(torch.stack([keys, values], dim=2),
                                        padding)
        pages = pages.unflatten(3, (self._num_pages, _PAGE_SIZE)).movedim(3, 1)
        kv = pages.new_zeros((1, self._layout.num_blocks, *pages.shape[2:]))
        kv[0, 1:] = pages.flatten(0, 1)
        self.backend = backend_of(keys.device)(self._layout, kv, 1)

    def kept(self, sequence, policy, target, queries):
        """What the policy keeps of a sequence: bool [heads, tokens], on the CPU."""
        blocks = 1 + sequence * self._num_pages + np.arange(self._num_pages)
        keep = self.backend.select(Eviction(
            policy=policy, target=target, table=None,
            entries=blockmgr.index_entries(self._layout, blocks,
                                           self._num_tokens),
            length=self._num_tokens, queries=[queries],
            scales=[self._module.scaling], modules=[self._module]))
        kept = torch.zeros((self._layout.num_heads, self._num_tokens),
                           dtype=torch.bool, device="cpu")
        for head, mask in enumerate(kept):
            begin, end = keep.offsets[head:head + 2]
            mask[torch.from_numpy(keep.ranks[begin:end].astype(np.int64))] = True
        return kept
