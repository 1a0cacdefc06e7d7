"""docs/python.md shows what the examples do, and the examples run."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_shows_the_example():
    example = (ROOT / "examples/python/nano_engine.py").read_text()
    page = (ROOT / "docs/python.md").read_text()
    # device/test_page.py has the others.
    page = re.sub("## On a GPU.*?\n## ", "", page, flags=re.DOTALL)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert block in example


def test_the_example_evicts():
    done = subprocess.run([sys.executable, ROOT / "examples/python/embed.py"],
                          check=True, text=True, stdout=subprocess.PIPE)
    # Of 500 tokens, 31 pages are covered. A quarter of the pages stays.
    assert done.stdout.count("3008 entries evicted, 23 blocks free again") == 3
    assert done.stdout.count(" 32 tokens, length") == 3
    # 3 sequences, 23 blocks of 16 tokens, K and V of 4 layers, 2 heads, 16
    # floats.
    freed = 3 * 23 * 16 * 2 * 4 * 2 * 16 * 4
    assert f"3 evictions gave {freed} bytes back" in done.stdout
