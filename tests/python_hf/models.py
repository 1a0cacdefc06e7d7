"""A small random Llama, and dense attention with masks per head as reference."""
import torch
from transformers import (AttentionInterface, DynamicCache, LlamaConfig,
                          LlamaForCausalLM)
from transformers.masking_utils import (ALL_MASK_ATTENTION_FUNCTIONS,
                                        AttentionMaskInterface)

import blockmgr.hf

LAYERS, HEADS, GROUP, DIM = 3, 2, 2, 16
torch.set_num_threads(1)  # tensors are small: threads would only wait for each other


def make_model(dtype=torch.float32, head_dim=DIM, **fields):
    """Grouped query heads; weights so large that attention is far from even."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=160, hidden_size=64, intermediate_size=96,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS * GROUP,
        num_key_value_heads=HEADS, head_dim=head_dim, initializer_range=0.2,
        max_position_embeddings=2048, dtype=dtype, eos_token_id=None,
        bos_token_id=None, pad_token_id=0, **fields)
    config._attn_implementation = "blockmgr"
    return LlamaForCausalLM(config).to(dtype).eval()


def prompt(batch, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 160, (batch, length), generator=generator)


def pool_for(model, num_tokens=4096, **fields):
    return blockmgr.hf.BlockPool(model.config, num_tokens, num_threads=1,
                                 device=model.device, **fields)


#: By layer: bool [batch, heads, tokens], what a query may see; longer: all of it.
visible = {}


def _masked_attention(module, query, key, value, attention_mask, dropout=0.0,
                      scaling=None, **_):
    key = key.repeat_interleave(GROUP, dim=1).double()
    value = value.repeat_interleave(GROUP, dim=1).double()
    logits = query.double() @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        logits = logits.masked_fill(~attention_mask, -torch.inf)
    mask = visible.get(module.layer_idx)
    if mask is not None:
        seen = torch.ones((*mask.shape[:2], key.shape[2]), dtype=torch.bool,
                          device=key.device)
        seen[:, :, :mask.shape[2]] = mask
        seen = seen.repeat_interleave(GROUP, dim=1).unsqueeze(2)
        logits = logits.masked_fill(~seen, -torch.inf)
    output = torch.softmax(logits, dim=-1).nan_to_num() @ value
    return output.transpose(1, 2).to(query.dtype).contiguous(), None


def _full_mask(*args, **kwargs):
    kwargs["allow_is_causal_skip"] = False
    return ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)


AttentionInterface.register("masked_dense", _masked_attention)
AttentionMaskInterface.register("masked_dense", _full_mask)


def dense_logits(model, passes, masks=None, mask=None, evictions=None):
    """The logits of each pass, [batch, tokens, vocabulary], without any eviction.

    From the second pass on, heads see of earlier tokens what `masks` says; or from
    pass i on what evictions[i] says.
    """
    evictions = evictions or {1: masks or {}}
    model.set_attn_implementation("masked_dense")
    try:
        return run(model, DynamicCache(), passes, mask,
                   lambda i: visible.update(evictions.get(i, {})))
    finally:
        visible.clear()
        model.set_attn_implementation("blockmgr")


@torch.no_grad()
def run(model, cache, passes, mask=None, before=lambda i: None, seen=0):
    """Runs the tokens of the passes, one forward pass after the other.

    seen: the tokens that the cache has seen before.
    """
    logits = []
    for i, tokens in enumerate(passes):
        before(i)
        end = seen + tokens.shape[1]
        positions = torch.arange(seen, end, device=model.device)
        fields = {"position_ids": positions.unsqueeze(0)}
        if mask is not None:
            padded = torch.nn.functional.pad(mask, (0, end), value=1)[:, :end]
            fields["attention_mask"] = padded.to(model.device)
            fields["position_ids"] = (padded.cumsum(dim=1) - 1).clamp(
                min=0)[:, seen:].to(model.device)
        logits.append(model(tokens.to(model.device), past_key_values=cache,
                            cache_position=positions, **fields).logits)
        seen = end
    return logits


def kept_masks(cache, batch, length, first=None):
    """kept_positions of the first `length` tokens, as `visible` has them.

    first: the number of padding tokens of each sequence.
    """
    masks = {layer: torch.zeros((batch, HEADS, length), dtype=torch.bool)
             for layer in range(LAYERS)}
    for i in range(batch):
        shift = 0 if first is None else first[i]
        for layer, heads in enumerate(cache.kept_positions(i)):
            for head, positions in enumerate(heads):
                own = torch.from_numpy(positions.copy()).long() + shift
                masks[layer][i, head, own[own < length]] = True
    return masks
