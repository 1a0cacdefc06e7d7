#!/usr/bin/env python3
"""A serving engine in one file: PyTorch computes the model, blockmgr owns its memory.

  nano_engine.py --model SmolLM2-135M-Instruct.Q4_1.gguf --keep-ratio 0.2 \\
      --prompt "What is the capital of France?" --prompt "Name three primary colors."

Read it from top to bottom:

  Llama      the model's weights and layers; knows nothing of a cache
  sample     the next token from logits
  Engine     the paged pool, and the execution of one step plan after the other:
             where K and V are written, what is attended to, what is evicted
  Chat       text to tokens and back
  main       a server's loop around the scheduler

The scheduler (blockmgr.Scheduler) decides which requests run, in which chunks, on
which blocks, and when to evict. So continuous batching, shared prefixes, chunked
prefill, forks and preemption need no code here beyond applying the plan.

On a GPU (--device cuda), nano_kernels.py attends with the CUDA kernels of blockmgr.
Needs the wheel (docs/python.md), and the packages of examples/python/requirements.txt.
"""
import argparse
import sys

import gguf
import jinja2.sandbox
import tokenizers
import torch
from torch.nn import functional as F

import blockmgr
from blockmgr import policies

TENSORS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm",
           "ffn_gate", "ffn_up", "ffn_down")


class Llama:
    """A model of the Llama family from a GGUF file, computed in float32."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        if self.field("general.architecture") != "llama":
            raise ValueError(f"{path}: expected the architecture llama, got "
                             f"{self.field('general.architecture')}")
        if self.field("llama.rope.scaling.type", "none") != "none":
            raise ValueError(f"{path}: expected no llama.rope.scaling.type")
        self.num_layers = self.field("llama.block_count")
        self.num_q_heads = self.field("llama.attention.head_count")
        self.num_heads = self.field("llama.attention.head_count_kv",
                                    self.num_q_heads)
        self.head_dim = self.field(
            "llama.attention.key_length",
            self.field("llama.embedding_length") // self.num_q_heads)
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")
        ends = [self.field(f"tokenizer.ggml.{name}_token_id", None)
                for name in ("eos", "eot")]
        self.end_tokens = [token for token in ends if token is not None]
        self.weights = {
            tensor.name: torch.tensor(gguf.dequantize(tensor.data,
                                                      tensor.tensor_type))
            for tensor in reader.tensors}
        self.vocabulary_size = len(self.weights["token_embd.weight"])
        expected = {f"blk.{layer}.{name}.weight" for name in TENSORS
                    for layer in range(self.num_layers)}
        expected |= {"token_embd.weight", "output_norm.weight"}
        wrong = expected ^ (set(self.weights) - {"output.weight",
                                                 "rope_freqs.weight"})
        if wrong:  # experts, biases, ..
            raise ValueError(f"{path}: lacks, or should not have: {min(wrong)}")
        # A position turns pair i of a head by position * frequencies[i].
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        self.frequencies = self.field("llama.rope.freq_base", 10000.0)**-pairs
        if "rope_freqs.weight" in self.weights:  # Llama 3.1
            self.frequencies /= self.weights["rope_freqs.weight"]

    def field(self, name, *default):
        """A value of the file's metadata."""
        if name in self.fields:
            return self.fields[name].contents()
        if not default:
            raise ValueError(f"the model's file has no {name}")
        return default[0]

    def norm(self, rows, name):
        return F.rms_norm(rows, rows.shape[-1:], self.weights[f"{name}.weight"],
                          self.epsilon)

    def linear(self, rows, name):
        return F.linear(rows, self.weights[f"{name}.weight"])

    def heads_of(self, rows, name):  # [rows, heads, head_dim]
        return self.linear(rows, name).unflatten(-1, (-1, self.head_dim))

    def forward(self, tokens, positions, attend):
        """Returns the last hidden rows of tokens of any sequences, [n, hidden].

        attend(layer, queries, keys, values) keeps the keys and values of these
        tokens, and returns what the queries get; all are [n, heads, head_dim].
        """
        angles = torch.outer(positions.double(), self.frequencies).float()
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]

        def rotate(x):  # the file has the two elements of a pair side by side
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turns).flatten(-2)

        rows = self.weights["token_embd.weight"][tokens]
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            x = self.norm(rows, f"{block}.attn_norm")
            attended = attend(layer, rotate(self.heads_of(x, f"{block}.attn_q")),
                              rotate(self.heads_of(x, f"{block}.attn_k")),
                              self.heads_of(x, f"{block}.attn_v"))
            rows = rows + self.linear(attended.flatten(1), f"{block}.attn_output")
            x = self.norm(rows, f"{block}.ffn_norm")
            gate = F.silu(self.linear(x, f"{block}.ffn_gate"))
            rows = rows + self.linear(gate * self.linear(x, f"{block}.ffn_up"),
                                      f"{block}.ffn_down")
        return rows

    def logits(self, rows):  # of the last hidden rows: [n, vocabulary]
        tied = "output" if "output.weight" in self.weights else "token_embd"
        return self.linear(self.norm(rows, "output_norm"), tied)


def sample(logits, params, position):
    """The token at a position. params: blockmgr.SamplingParams, or None (greedy).

    The random number is a function of the seed and the position alone. So equal
    logits give the same token in any batch, and again after a preemption.
    """
    logits = logits.cpu()
    if params is None or params.temperature < 1e-5:
        return int(logits.argmax())
    chances = torch.softmax(logits / params.temperature, -1)
    chances, tokens = chances.sort(descending=True, stable=True)
    # The smallest set of tokens that together reach top_p.
    chances[chances.cumsum(-1) - chances >= params.top_p] = 0
    generator = torch.Generator().manual_seed(
        (params.seed * 1_000_003 + position) % (1 << 63))
    return int(tokens[torch.multinomial(chances, 1, generator=generator)])


# Scorers of evictions make of a layer's keys [heads, entries, head_dim], and of
# valid [heads, entries], scores [heads, entries]. Higher is kept.
def keydiff(keys, valid):
    """A key is worth more, the less it is like the mean key of its head."""
    units = F.normalize(keys, dim=-1) * valid[..., None]
    anchor = units.sum(1) / valid.sum(1)[:, None]
    return -F.cosine_similarity(keys, anchor[:, None], dim=-1)


def knorm(keys, _valid):
    """A key is worth more, the shorter it is."""
    return -keys.norm(dim=-1)


SCORERS = {"keydiff": keydiff, "knorm": knorm}


def unsupported(policy):
    """Says why this engine cannot evict by a policy; None if it can."""
    name, fields = policy.scorer
    if name not in SCORERS or fields != policies.STAGES["scorer"][name]:
        return f"policy: expected a scorer of {', '.join(SCORERS)}, got {policy}"
    if policy.selector[0] != "topk":
        return f"policy: expected the selector topk, got {policy}"
    return None


class Entries:
    """What one sequence attends to, as tensors [num_layers, num_heads, longest].

    Every head may have another number of entries, so shorter ones are padded. `valid`
    tells entries from padding, `positions` are their tokens, `rows` their keys' rows.
    """

    def __init__(self, layout, entries):
        offsets = torch.tensor(entries.offsets)
        lengths = offsets.diff().view(layout.num_layers, layout.num_heads, 1)
        self.valid = torch.arange(int(lengths.max())) < lengths
        self.positions = torch.zeros(self.valid.shape, dtype=torch.int32)
        self.positions[self.valid] = torch.tensor(entries.positions)
        self.rows = torch.zeros(self.valid.shape, dtype=torch.int64)
        self.rows[self.valid] = key_rows(torch.tensor(entries.slots),
                                         layout.page_size)


def key_rows(slots, page_size):
    """The rows of keys. A page has page_size rows of K, then as many of V."""
    return slots + slots // page_size * page_size


class Engine:
    """A model, its paged pool, and the execution of one step plan after the other.

    The pool is one tensor [num_layers, num_blocks, num_heads, 2, page_size,
    head_dim], which KvLayout calls "pages". A block is one page for every head of
    every layer. Before an eviction, position p of a sequence is at offset
    p % page_size in block p // page_size of its block table (the tail). After it,
    each head has a list of pages of its own for the entries that it has kept (the
    region), and the tail begins behind them.

        position   0          cut
        head 0     |region....|tail block|tail block|
        head 1     |region|    (the same tail)
    """

    def __init__(self, model, layout, kernels=None):
        self.model = model
        self.layout = layout
        self.tables = blockmgr.EngineTables(layout)
        self.pool = torch.zeros(
            layout.num_layers, layout.num_blocks, layout.num_heads, 2,
            layout.page_size, layout.head_dim, dtype=getattr(torch, layout.dtype))
        self.rows = self.pool.view(-1, layout.head_dim)  # one token of K or of V
        # On a GPU: nano_kernels.KernelAttention
        self.kernels = None if kernels is None else kernels(layout, self.pool)
        self.infos = {}  # by slot: how to sample
        self.region_positions = {}  # by slot: the tokens of the region's rows
        self.kept_positions = {}  # likewise, by the name of a cached region

    @torch.no_grad()
    def run(self, plan):
        """Carries out a plan, and returns the answer."""
        self.tables.apply(plan)
        self.start(plan)
        inputs = self.tables.inputs()
        positions = torch.tensor(inputs.positions)
        if self.kernels is None:
            attend = self.attention_of(plan, inputs, positions)
        else:
            attend = self.kernels.of(self.tables, plan, inputs)
        rows = self.model.forward(torch.tensor(inputs.tokens), positions, attend)
        sampled = torch.full((len(plan),), -1, dtype=torch.int32, device="cpu")
        samples = plan.samples.nonzero()[0]  # not of a prompt's earlier chunks
        logits = self.model.logits(
            rows[torch.tensor(inputs.offsets[1:][samples] - 1)])
        for i, row in zip(samples.tolist(), logits):
            info = self.infos[int(plan.slots[i])]
            sampled[i] = sample(row, info.sampling, int(inputs.lengths[i]))
        if self.kernels is not None:
            self.kernels.check()
        outcomes = [self.evict(order) for order in plan.evictions]
        self.tables.add_sampled(sampled)
        return blockmgr.StepResult(plan.step, sampled, outcomes)

    def start(self, plan):
        """Does what EngineTables.apply leaves to the owner of the pool."""
        for start in plan.starts:
            self.infos[start.slot] = start.info
            positions = None
            if start.region is not None:  # a prefix that was evicted from
                positions = self.kept_positions[start.region]
            elif start.source is not None:  # a fork, perhaps of the slot itself
                positions = self.region_positions[start.source]
            self.region_positions[start.slot] = positions
        for region in plan.dropped_regions.tolist():
            del self.kept_positions[region]
        for _, source, destination, count, _ in plan.copies.tolist():
            self.pool[:, destination, :, :, :count] = (
                self.pool[:, source, :, :, :count])

    def entries(self, slot, limit):
        """The entries of a sequence at positions below limit: region, then tail."""
        return blockmgr.index_entries(
            self.layout, self.tables.tail_blocks(slot), limit,
            region=self.tables.region(slot),
            region_positions=self.region_positions[slot])

    def attention_of(self, plan, inputs, positions):
        """Returns attend(layer, queries, keys, values) for the tokens of a step."""
        offsets, size = inputs.offsets.tolist(), self.layout.page_size
        slots = torch.tensor(self.tables.slot_mapping())
        attended = [Entries(self.layout, self.entries(slot, length)) for slot, length
                    in zip(plan.slots.tolist(), inputs.lengths.tolist())]

        def attend(layer, queries, keys, values):
            self.pool[layer, slots // size, :, 0, slots % size] = keys
            self.pool[layer, slots // size, :, 1, slots % size] = values
            return torch.cat([
                self.attention(layer, queries[begin:end], positions[begin:end],
                               entries)
                for begin, end, entries in zip(offsets, offsets[1:], attended)])

        return attend

    def attention(self, layer, queries, positions, entries):
        """What the queries of one sequence get, [n, q_heads, head_dim]."""
        rows = entries.rows[layer]
        keys, values = self.rows[rows], self.rows[rows + self.layout.page_size]
        # [heads, queries, entries]: what is there and not in the future.
        mask = entries.valid[layer, :, None] & (
            entries.positions[layer, :, None] <= positions[:, None])
        grouped = queries.unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(
            grouped, keys[:, None], values[:, None], attn_mask=mask[:, None],
            enable_gqa=True).permute(2, 0, 1, 3).flatten(1, 2)

    def evict(self, order):
        """Replaces positions [0, cut) of a sequence by what its heads keep."""
        problem = unsupported(order.policy)
        if problem is not None:  # the request goes on without the eviction
            return blockmgr.EvictionOutcome(error=problem)
        # 1. Score all entries, those behind the cut, too: they are in the mean.
        scorer = SCORERS[order.policy.scorer[0]]
        known = Entries(self.layout, self.entries(order.slot, order.length))
        scores = torch.stack([scorer(self.rows[rows].float(), valid)
                              for rows, valid in zip(known.rows, known.valid)])
        # 2. Give every head its budget, and choose its survivors.
        entries = self.entries(order.slot, order.cut)
        keep = blockmgr.select(
            order.policy, order.target,
            scores[known.valid & (known.positions < order.cut)].cpu(), entries=entries,
            cut=order.cut, length=order.length, page_size=self.layout.page_size)
        # 3. Lay out the region. The scheduler does the same from the counts.
        checksum = self.tables.commit(order, keep.counts)
        region = self.tables.region(order.slot)
        assert region is not None
        # 4. Move the survivors there, group by group: all is read before any is
        # written, as a region may lie on the sequence's own pages.
        placed = blockmgr.place_survivors(self.layout, entries, keep, region)
        moves = key_rows(torch.tensor(placed.moves), self.layout.page_size)
        for group in moves.tensor_split(placed.group_ends.tolist()):
            for part in (0, self.layout.page_size):  # K, V
                self.rows[group[:, 1] + part] = self.rows[group[:, 0] + part]
        self.region_positions[order.slot] = placed.positions
        if order.region is not None:
            self.kept_positions[order.region] = placed.positions
        # With this answer, the blocks outside the region belong to others.
        return blockmgr.EvictionOutcome(keep.counts, checksum)


# How text is split before byte pairs are merged, by tokenizer.ggml.pre.
_LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
           r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITTERS = {
    "smollm": lambda pre: [pre.Digits(individual_digits=True),
                           pre.ByteLevel(add_prefix_space=False)],
    "llama-bpe": lambda pre: [
        pre.Split(tokenizers.Regex(_LLAMA3), "isolated"),
        pre.ByteLevel(add_prefix_space=False, use_regex=False)],
}


class Chat:
    """Questions to tokens, and tokens to answers, as a model's file says."""

    def __init__(self, model):
        kind = model.field("tokenizer.ggml.pre")
        if kind not in SPLITTERS:
            raise ValueError("tokenizer.ggml.pre: expected one of "
                             f"{', '.join(SPLITTERS)}, got {kind}")
        tokens = model.field("tokenizer.ggml.tokens")
        merges = model.field("tokenizer.ggml.merges")
        self.tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
            ignore_merges=kind == "llama-bpe"))
        self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            SPLITTERS[kind](tokenizers.pre_tokenizers))
        self.tokenizer.decoder = tokenizers.decoders.ByteLevel()
        types = model.field("tokenizer.ggml.token_type")
        self.tokenizer.add_special_tokens([
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, type_ in zip(tokens, types)
            if type_ == gguf.TokenType.CONTROL])
        self.template = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True).from_string(
                model.field("tokenizer.chat_template"))
        self.bos = tokens[model.field("tokenizer.ggml.bos_token_id")]

    def encode(self, question):
        """A question to the assistant as token ids."""
        text = self.template.render(
            messages=[{"role": "user", "content": question}], bos_token=self.bos,
            add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def layout_for(model, num_blocks, dtype="float32"):
    return blockmgr.KvLayout(
        num_layers=model.num_layers, num_heads=model.num_heads, dtype=dtype,
        num_q_heads=model.num_q_heads, head_dim=model.head_dim, num_blocks=num_blocks)


def scheduler_for(model, layout, **options):
    """A scheduler that knows what this engine can do."""
    return blockmgr.Scheduler(layout, blockmgr.SchedulerOptions(
        sampling_fields=("temperature", "top_p", "seed"),
        vocabulary_size=model.vocabulary_size, end_token_ids=model.end_tokens,
        **options))


HELP = """\
All prompts are answered at the same time. With --keep-ratio 0.2, when a prompt is
computed, its KV entries (K and V of one token in one head) are scored, the heads divide
a fifth of the entries among themselves, and all others are dropped. Blocks that are
then empty go back to the pool.

Things to try:
  a long prompt, and a question about it, with and without --keep-ratio
  --eviction 'keydiff | uniform': every head keeps as much as the others
  --num-blocks 60: requests wait for blocks, or are preempted and computed again
  --max-num-batched-tokens 64: prompts are computed in chunks, beside decoding
  the same --prompt twice: blocks of the common prefix are shared
"""


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0], epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, metavar="FILE",
        help="GGUF file of a chat model of the Llama family")
    add("--prompt", required=True, action="append", metavar="TEXT",
        help="a question; may be repeated")
    add("--max-tokens", type=int, default=64, metavar="N",
        help="length of an answer (default: %(default)s)")
    add("--keep-ratio", metavar="R",
        help="share of a prompt's entries to keep (default: no eviction)")
    add("--eviction", default="keydiff | adakv | topk", metavar="POLICY",
        help="scorer | budget | selector (default: %(default)s)")
    add("--temperature", type=float, default=0.0, metavar="T",
        help="0 takes the most likely token (default: %(default)s)")
    add("--top-p", type=float, default=1.0, metavar="P",
        help="draw from the likeliest tokens with this probability together")
    add("--seed", type=int, default=0, metavar="N",
        help="the same seed draws the same tokens (default: %(default)s)")
    add("--num-blocks", type=int, default=512, metavar="N",
        help="blocks of 16 tokens, one of them the null block (default: %(default)s)")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    add("--max-num-batched-tokens", type=int, default=2048, metavar="N",
        help="tokens of a step (default: %(default)s)")
    return parser.parse_args(arguments)


def serve(flags):
    eviction, kernels, dtype = None, None, "float32"
    if flags.keep_ratio is not None:
        eviction = blockmgr.Eviction(flags.eviction, flags.keep_ratio)
    if flags.device == "cuda":
        import nano_kernels
        kernels, dtype = nano_kernels.use_gpu()
    model = Llama(flags.model)
    chat = Chat(model)
    layout = layout_for(model, flags.num_blocks, dtype)
    scheduler = scheduler_for(
        model, layout, max_num_seqs=len(flags.prompt),
        max_num_batched_tokens=flags.max_num_batched_tokens)
    engine = Engine(model, layout, kernels)
    sampling = blockmgr.SamplingParams(temperature=flags.temperature,
                                       top_p=flags.top_p, seed=flags.seed)
    requests: dict = {}  # prompt, number of tokens, answer
    for i, prompt in enumerate(flags.prompt):
        tokens = chat.encode(prompt)
        request = scheduler.submit(f"prompt {i}", tokens, flags.max_tokens,
                                   eviction=eviction, sampling=sampling)
        requests[request] = prompt, len(tokens), []
    most_blocks = 0
    while (plan := scheduler.schedule()) is not None:
        most_blocks = max(most_blocks, scheduler.num_used_blocks)
        effects = scheduler.update(engine.run(plan))
        for request, token in zip(effects.token_requests.tolist(),
                                  effects.tokens.tolist()):
            requests[request][2].append(token)
        for effect in effects.evictions:
            if effect.error is not None:
                raise effect.error
            print(f"[request {effect.request}: {effect.evicted_entries} entries "
                  f"evicted, {effect.freed_blocks} blocks, {effect.freed_bytes:,} "
                  f"bytes free again; {scheduler.num_used_blocks} blocks in use]")
        for end in effects.finished:
            if end.error is not None:
                raise end.error
            prompt, num_tokens, answer = requests[end.request]
            print(f"\n> {prompt.strip()[-70:]} ({num_tokens} tokens, "
                  f"{end.num_cached_tokens} of them cached)\n"
                  f"{chat.decode(answer).strip()}\n", flush=True)
    stats = scheduler.stats()
    print(f"Of {layout.num_blocks - 1} blocks, {most_blocks} were used at most. "
          f"{stats.num_evictions} evictions freed {stats.evicted_bytes:,} bytes; "
          f"{stats.num_preemptions} preemptions.")


def main():
    try:
        serve(parse(sys.argv[1:]))
    except (OSError, ValueError, blockmgr.Error) as error:
        sys.exit(f"nano_engine.py: {error}")


if __name__ == "__main__":
    main()
