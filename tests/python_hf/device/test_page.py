"""The code of docs/huggingface.md, On a GPU."""
from test_device import DEVICE
from test_docs import WORDS, blocks_of_page, save_model


def test_the_code_of_the_page_runs_on_a_device(tmp_path):
    save_model(tmp_path, head_dim=64)
    blocks = blocks_of_page()
    lines = blocks[0]
    for other in blocks[3].splitlines():
        name = other.split(" = ")[0]
        line, = (line for line in lines.splitlines()
                 if line.startswith(f"{name} = "))
        lines = lines.replace(line, other)
    lines = lines.replace('"cuda"', f'"{DEVICE}"').replace(
        "max_new_tokens=100", "max_new_tokens=10")
    names = {"name": str(tmp_path),
             "prompts": [" ".join(WORDS[2:] * 2), " ".join(WORDS[9:])]}
    exec(lines.replace("cache.reset()", ""), names)
    # 124 and 55 tokens, and 9 of the 10 new ones.
    cache, pool = names["cache"], names["pool"]
    assert pool.kv.device == names["model"].device
    assert cache.dense_bytes == (9 + 4) * pool.layout.block_bytes
    assert cache.used_blocks <= (3 + 1) + (2 + 1)
    cache.reset()
    assert pool.used_blocks == 0
