"""These tests need torch, transformers and kvpress (python/requirements-hf.txt)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
