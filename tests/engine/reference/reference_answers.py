#!/usr/bin/env python3
"""Writes model_answers.json: greedy answers of SmolLM2-135M-Instruct.

An independent reference: numpy in float64, dense attention, written from the
descriptions of GGUF and of the Llama architecture. It needs the packages numpy,
gguf and tokenizers, and the model's file (scripts/fetch_model.sh). The margin of
an answer's token is how far its logit is above the next one.

  python3 reference_answers.py MODEL.gguf > model_answers.json
"""

import json
import sys

import gguf
import numpy as np
import tokenizers

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
MAX_TOKENS = 24
QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Name three primary colors.",
    "How many days are in a week?",
    "What is 2 + 3?",
    "Who wrote Romeo and Juliet?",
    "What do bees make?",
    "Translate 'good morning' to Spanish.",
    "What is the largest planet of the solar system?",
    "Write one sentence about the sea.",
    "What is the opposite of hot?",
    "At what temperature does water boil?",
    "List the first five letters of the alphabet.",
    "What is a noun?",
    "Which animal barks?",
    "What color is the sky on a clear day?",
    "What is the boiling point of water in Fahrenheit?",
    "Give me a name for a cat.",
    "What is the main ingredient of bread?",
    "Why do leaves fall in autumn?",
]


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields[key].contents()
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.width = field("llama.embedding_length")
        self.dim = self.width // self.heads
        self.epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.frequencies = field("llama.rope.freq_base") ** (
            -np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        self.tensors = {
            t.name: np.asarray(gguf.dequantize(t.data, t.tensor_type), np.float64)
            for t in reader.tensors}
        self.tokenizer = self.make_tokenizer(field)
        self.end = field("tokenizer.ggml.eos_token_id")

    @staticmethod
    def make_tokenizer(field):
        tokens = field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
        made = tokenizers.Tokenizer(tokenizers.models.BPE(
            vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        pre = tokenizers.pre_tokenizers
        made.pre_tokenizer = pre.Sequence([
            pre.Digits(individual_digits=True),
            pre.ByteLevel(add_prefix_space=False, use_regex=True)])
        made.decoder = tokenizers.decoders.ByteLevel()
        made.add_special_tokens([
            tokenizers.AddedToken(t, special=True, normalized=False)
            for t, kind in zip(tokens, field("tokenizer.ggml.token_type"))
            if kind == 3])
        return made

    def normalize(self, rows, name):
        scale = np.sqrt(np.mean(rows * rows, -1, keepdims=True) + self.epsilon)
        return rows / scale * self.tensors[name + ".weight"]

    def rotate(self, rows, positions):
        # The file has the two elements of a rotary pair side by side.
        angles = positions[:, None, None] * self.frequencies
        even, odd = rows[..., 0::2], rows[..., 1::2]
        rotated = np.empty_like(rows)
        rotated[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        rotated[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return rotated

    def forward(self, tokens, cache):
        """Adds tokens to the cache, a list of [keys, values] by layer. Returns
        the logits after the last one."""
        begin = len(cache[0][0]) if cache else 0
        positions = np.arange(begin, begin + len(tokens), dtype=np.float64)
        rows = self.tensors["token_embd.weight"][tokens]
        if not cache:
            empty = np.zeros((0, self.kv_heads, self.dim))
            cache.extend([empty, empty] for _ in range(self.layers))
        for layer in range(self.layers):
            weight = lambda name: self.tensors[f"blk.{layer}.{name}.weight"].T
            x = self.normalize(rows, f"blk.{layer}.attn_norm")
            split = lambda y, heads: y.reshape(len(tokens), heads, self.dim)
            query = self.rotate(split(x @ weight("attn_q"), self.heads), positions)
            key = self.rotate(split(x @ weight("attn_k"), self.kv_heads), positions)
            value = split(x @ weight("attn_v"), self.kv_heads)
            cache[layer][0] = np.concatenate([cache[layer][0], key])
            cache[layer][1] = np.concatenate([cache[layer][1], value])
            keys, values = (np.repeat(c, self.heads // self.kv_heads, axis=1)
                            for c in cache[layer])
            scores = np.einsum("qhd,khd->hqk", query, keys) / np.sqrt(self.dim)
            ahead = np.arange(len(keys))[None, :] > positions[:, None]
            scores[:, ahead] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            attended = np.einsum("hqk,khd->qhd", scores, values)
            rows = rows + attended.reshape(len(tokens), -1) @ weight("attn_output")
            x = self.normalize(rows, f"blk.{layer}.ffn_norm")
            gate = x @ weight("ffn_gate")
            rows = rows + (gate / (1 + np.exp(-gate)) * (x @ weight("ffn_up"))
                           ) @ weight("ffn_down")
        return self.normalize(rows[-1], "output_norm") @ (
            self.tensors["token_embd.weight"].T)

    def answer(self, question):
        text = (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
                f"{question}<|im_end|>\n<|im_start|>assistant\n")
        prompt = self.tokenizer.encode(text, add_special_tokens=False).ids
        cache, tokens, margins = [], [], []
        step = prompt
        while len(tokens) < MAX_TOKENS:
            logits = self.forward(step, cache)
            best = int(np.argmax(logits))
            margins.append(float(logits[best] - np.partition(logits, -2)[-2]))
            tokens.append(best)
            if best == self.end:
                break
            step = [best]
        return {"question": question, "prompt": prompt, "answer": tokens,
                "margins": [round(m, 4) for m in margins],
                "text": self.tokenizer.decode(tokens, skip_special_tokens=False)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    model = Model(sys.argv[1])
    answers = []
    for question in QUESTIONS:
        answers.append(model.answer(question))
        print(question, "->", answers[-1]["text"], file=sys.stderr)
    lines = ",\n".join(json.dumps(a) for a in answers)
    print(f'{{"model": "SmolLM2-135M-Instruct.Q4_1", "answers": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
