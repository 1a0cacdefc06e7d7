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
        queries = self._last_queries(policy, module, hidden_states, kwargs)
        gone = ~torch.stack([
            self._kept(policy, target, module, *rows)
            for rows in zip(keys, values, queries)])
        module.masked_key_indices = torch.nonzero(gone, as_tuple=True)
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

    @staticmethod
    def _kept(policy, target, module, keys, values, queries):
        """bool [heads, tokens] of one sequence."""
        num_heads, num_tokens, head_dim = keys.shape
        num_pages = -(-num_tokens // _PAGE_SIZE)
        layout = blockmgr.KvLayout(
            num_layers=1, num_heads=num_heads, head_dim=head_dim,
            num_q_heads=module.config.num_attention_heads,
            page_size=_PAGE_SIZE, num_blocks=num_pages + 1,
            dtype=DTYPES[keys.dtype])
        # [heads, 2, pages, page_size, dim], then as BlockPool.kv.
        padding = (0, 0, 0, num_pages * _PAGE_SIZE - num_tokens)
        pages = torch.nn.functional.pad(torch.stack([keys, values], dim=1),
                                        padding)
        pages = pages.unflatten(2, (num_pages, _PAGE_SIZE)).movedim(2, 0)
        pool = pages.new_zeros((1, num_pages + 1, *pages.shape[1:]))
        pool[0, 1:] = pages
        backend = backend_of(keys.device)(layout, pool, 1)
        backend.check_policy(policy)
        keep = backend.select(Eviction(
            policy=policy, target=target, table=None,
            entries=blockmgr.index_entries(
                layout, np.arange(1, num_pages + 1), num_tokens),
            length=num_tokens, queries=[queries], scales=[module.scaling],
            modules=[module]))
        kept = torch.zeros((num_heads, num_tokens), dtype=torch.bool,
                           device="cpu")
        for head, mask in enumerate(kept):
            begin, end = keep.offsets[head:head + 2]
            mask[torch.from_numpy(keep.ranks[begin:end].astype(np.int64))] = True
        return kept.to(keys.device)
