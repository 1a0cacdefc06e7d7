#!/usr/bin/env python3
"""A load client that others wrote measures scripts/chat.sh: AIPerf, of NVIDIA, by
the gateway smg, of three daemons with a language model.

  load_client_test.py FOLDER_OF_PROGRAMS PACKAGES [TEST..]

Runs with the Python of scripts/fleet_packages.sh, which is PACKAGES.
"""
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

PROGRAMS, PACKAGES = sys.argv[1:3]
if os.path.realpath(sys.prefix) != os.path.realpath(
        pathlib.Path(PACKAGES).parents[1]):
    os.execv(PACKAGES, [PACKAGES, *sys.argv])

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# pylint: disable=wrong-import-position
import grpc  # noqa: E402
from compare_fleets import PATIENCE_S, Fleet  # noqa: E402
from smg_grpc_proto.generated import (common_pb2,  # noqa: E402
                                      vllm_engine_pb2_grpc)

NUM_REPLICAS = 3
NUM_REQUESTS = 60
NUM_PROMPT_TOKENS = 96
NUM_OUTPUT_TOKENS = 16


def write_tokenizer(address, folder):
    """Writes the files of the engine's tokenizer, as a gateway gets them."""
    with grpc.insecure_channel(address) as channel:
        pieces = vllm_engine_pb2_grpc.VllmEngineStub(channel).GetTokenizer(
            common_pb2.GetTokenizerRequest(), timeout=PATIENCE_S)
        archive = b"".join(piece.data for piece in pieces)
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)


class LoadClientTest(unittest.TestCase):
    """AIPerf's figures beside the daemons' own."""

    def setUp(self):
        self.fleet = Fleet(PROGRAMS, "--replicas", str(NUM_REPLICAS),
                           "--keep-ratio", "0.5")
        self.addCleanup(self.fleet.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def profile(self, *flags):
        """Returns AIPerf's report of a run."""
        command = [
            pathlib.Path(PACKAGES).parent / "aiperf", "profile",
            "--model", self.fleet.model, "--url", self.fleet.url,
            "--endpoint-type", "chat", "--streaming", "--ui", "none",
            "--tokenizer", self.folder / "tokenizer",
            "--artifact-dir", self.folder / "report",
            "--request-count", str(NUM_REQUESTS), "--random-seed", "1", *flags]
        run = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True,
                             timeout=PATIENCE_S, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        return json.loads(next(self.folder.glob(
            "report/**/profile_export_aiperf.json")).read_text("utf-8"))

    def test_no_request_fails_and_the_counts_are_the_daemons(self):
        address = re.search(r"of \d+ at (\S+),", self.fleet.text()).group(1)
        write_tokenizer(address, self.folder / "tokenizer")
        before = self.fleet.metrics()
        report = self.profile(
            "--concurrency", "6", "--use-server-token-count",
            "--synthetic-input-tokens-mean", str(NUM_PROMPT_TOKENS),
            "--shared-system-prompt-length", "64",
            "--output-tokens-mean", str(NUM_OUTPUT_TOKENS))
        self.assertEqual(report["request_count"]["avg"], NUM_REQUESTS)
        self.assertEqual(report["request_error_rate"]["avg"], 0)
        ours = {name: sum(after[name] - then[name] for then, after in
                          zip(before, self.fleet.metrics()))
                for name in before[0]}
        print(ours, file=sys.stderr)
        self.assertEqual(ours["requests_finished"], NUM_REQUESTS)
        self.assertEqual(report["total_usage_prompt_tokens"]["avg"],
                         ours["prompt_tokens"])
        self.assertEqual(report["total_usage_prompt_cache_read_tokens"]["avg"],
                         ours["cached_tokens"])
        # All have the same system prompt.
        self.assertGreater(ours["cached_tokens"], 0.3 * ours["prompt_tokens"])
        self.assertGreaterEqual(ours["evictions"], NUM_REQUESTS)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
