"""What these tests need beyond the package (scripts/python.sh --torch)."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples/python"))

import torch  # noqa: E402

# Threads that wait for each other take long on a machine that is busy.
torch.set_num_threads(1)
