"""The code of docs/huggingface.md runs, on a small model and tokenizer."""
import pathlib
import re

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAGE = pathlib.Path(__file__).parents[2] / "docs/huggingface.md"
WORDS = ["<pad>", "<unk>", *(f"w{i}" for i in range(62))]


def blocks_of_page():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def save_model(folder, head_dim=8):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=len(WORDS), hidden_size=48, num_hidden_layers=6,
                         intermediate_size=64, num_attention_heads=6,
                         num_key_value_heads=3, head_dim=head_dim, pad_token_id=0,
                         bos_token_id=None, eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(
        {word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>",
                            unk_token="<unk>", bos_token="<unk>",
                            padding_side="left").save_pretrained(folder)


def test_the_code_of_the_page_runs(tmp_path, capsys):
    blocks = blocks_of_page()
    assert len(blocks) == 4  # the last is tested by device/test_page.py
    save_model(tmp_path)
    names = {"name": str(tmp_path), "context": " ".join(WORDS[2:] * 4),
             "prompts": [" ".join(WORDS[2:] * 5), " ".join(WORDS[9:] * 2)],
             "questions": ["w1 w2 w3", "w9 w8"]}
    exec(blocks[0].replace("cache.reset()", ""), names)
    # 310 and 110 tokens, and 99 of the 100 new ones.
    cache, pool = names["cache"], names["pool"]
    assert cache.dense_bytes == (26 + 14) * pool.layout.block_bytes
    assert cache.used_blocks <= (5 + 7) + (2 + 7)
    held = re.search(r"(\d+) of (\d+)", capsys.readouterr().out)
    assert int(held[1]) == cache.used_bytes and int(held[2]) == cache.dense_bytes
    cache.reset()
    assert pool.used_blocks == 0
    exec(blocks[1], names)
    assert 0 < names["cache"].used_bytes < 0.5 * names["cache"].dense_bytes
    exec(blocks[2].replace("pipe(context", "answers = pipe(context"), names)
    assert len(names["answers"]) == 2
