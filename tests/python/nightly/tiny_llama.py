"""A random Llama of a few thousand weights as a GGUF file, and a dense reference.

The reference is written from the description of the architecture, in float64, and
shares no code with examples/python/nano_engine.py: rotary pairs are half a head
apart, there is no cache, and an eviction is a mask.
"""
import gguf
import numpy as np
import torch

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, MLP, VOCABULARY = 3, 4, 2, 64, 64, 96, 97
THETA, EPSILON, END = 10000.0, 1e-5, 96


def write(path, seed, architecture="llama", without=None, add=None):
    """Writes the file, half of it in Q8_0, and returns the weights in float64."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN),
              "output.weight": (VOCABULARY, HIDDEN)}
    for i in range(LAYERS):
        shapes.update({
            f"blk.{i}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{i}.ffn_gate.weight": (MLP, HIDDEN),
            f"blk.{i}.ffn_up.weight": (MLP, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, MLP)})
    norms = [f"blk.{i}.{name}_norm.weight" for i in range(LAYERS)
             for name in ("attn", "ffn")] + ["output_norm.weight"]
    norms += [add] if add else []
    shapes.pop(without, None)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_eos_token_id(END)
    weights = {}
    for i, (name, shape) in enumerate(shapes.items()):
        # Large enough that attention prefers some tokens to others.
        values = (rng.standard_normal(shape) * 1.5 / np.sqrt(shape[1])).astype(
            np.float32)
        if i % 2 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quantize(values, kind)
            values = gguf.dequantize(packed, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
        weights[name] = torch.tensor(values, dtype=torch.float64)
    for name in norms:
        values = (1 + 0.3 * rng.standard_normal(HIDDEN)).astype(np.float32)
        writer.add_tensor(name, values)
        weights[name] = torch.tensor(values, dtype=torch.float64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _normalize(rows, weight):
    return rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + EPSILON) * weight


def _halves(weight):
    """Rows of Q or K, with the two elements of a rotary pair half a head apart."""
    heads = weight.reshape(-1, HEAD_DIM // 2, 2, weight.shape[1])
    return heads.transpose(1, 2).reshape(weight.shape)


def _rotate(x):
    half = HEAD_DIM // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
    cos, sin = torch.cos(angles)[:, None], torch.sin(angles)[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def dense(weights, tokens, visible=None):
    """Logits [n, vocabulary] and keys [layers, KV heads, n, head_dim].

    visible: bool [layers, KV heads, n, n], what the query of each row attends to
    besides that it attends to nothing behind it.
    """
    n = len(tokens)
    rows = weights["token_embd.weight"][torch.tensor(tokens)]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    keys = []
    for i in range(LAYERS):
        weight = lambda name, i=i: weights[f"blk.{i}.{name}.weight"]
        x = _normalize(rows, weight("attn_norm"))
        q = _rotate((x @ _halves(weight("attn_q")).T).reshape(n, HEADS, HEAD_DIM))
        k = _rotate((x @ _halves(weight("attn_k")).T).reshape(n, KV_HEADS, HEAD_DIM))
        v = (x @ weight("attn_v").T).reshape(n, KV_HEADS, HEAD_DIM)
        keys.append(k.transpose(0, 1))
        attended = []
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = q[:, head] @ k[:, kv_head].T / HEAD_DIM**0.5
            mask = causal if visible is None else causal & visible[i, kv_head]
            scores = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            attended.append(scores @ v[:, kv_head])
        rows = rows + torch.cat(attended, -1) @ weight("attn_output").T
        x = _normalize(rows, weight("ffn_norm"))
        gate = x @ weight("ffn_gate").T
        rows = rows + (gate * torch.sigmoid(gate) * (x @ weight("ffn_up").T)
                       ) @ weight("ffn_down").T
    logits = _normalize(rows, weights["output_norm.weight"]) @ (
        weights["output.weight"].T)
    return logits, torch.stack(keys)
