#!/usr/bin/env python3
"""What others make of the daemon's KV events: an indexer that routers use, and
vLLM's own decoder.

  kv_event_consumers_test.py BLOCKMGRD ENGINE BENCH MESSAGES PACKAGES

PACKAGES is the Python of scripts/fleet_packages.sh, and MESSAGES the folder of
the generated messages. The indexer (ai-dynamo-runtime) follows the events while
a load client fills the cache over and over, and the decoder reads all of them. In
the end, everything that these think cached is cached, and the other way round, by
the daemon's own stream of its prefix cache.
"""
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import msgpack
import zmq

DAEMON, ENGINE, BENCH, MESSAGES, PACKAGES = sys.argv[1:6]
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"
sys.path[:0] = [str(EXAMPLES), MESSAGES]

# pylint: disable=wrong-import-position
import router  # noqa: E402

NUM_BLOCKS = 1500
PAGE_SIZE = 16
NUM_EVENTS = 100_000  # blocks stored and removed
NUM_QUERIES = 200
PATIENCE_S = 300


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {PATIENCE_S} s: {what}")
        time.sleep(0.1)


class Counter:
    """Counts the blocks that events tell of, by a decoder of its own."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.subscribe(b"")
        self.socket.connect(endpoint)
        self.next = None
        self.payloads = []
        self.num_told = 0
        self.cached = {}  # hash: parent's

    def read(self):
        while self.socket.poll(0):
            topic, number, batch = self.socket.recv_multipart()
            assert topic == b"", topic
            number = int.from_bytes(number, "big")
            assert self.next in (None, number), (self.next, number)
            self.next = number + 1
            self.payloads.append(batch)
            _, events, _ = msgpack.unpackb(batch)
            for event in events:
                self.apply(event)

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.cached.clear()
            return
        self.num_told += len(event["block_hashes"])
        if event["type"] == "BlockRemoved":
            for removed in event["block_hashes"]:
                del self.cached[removed]
            return
        assert event["type"] == "BlockStored", event
        assert len(event["token_ids"]) == PAGE_SIZE * len(event["block_hashes"])
        parent = event["parent_block_hash"]
        for stored in event["block_hashes"]:
            assert parent is None or parent in self.cached, event
            assert stored not in self.cached, event
            self.cached[stored] = parent
            parent = stored


class KvEventConsumersTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.address = f"unix:{self.folder.name}/s.sock"
        self.log = open(f"{self.folder.name}/log", "w+", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.events = f"tcp://127.0.0.1:{free_port()}"
        self.replays = f"tcp://127.0.0.1:{free_port()}"
        self.http = f"http://127.0.0.1:{free_port()}"

    def start(self, *command):
        program = subprocess.Popen([str(word) for word in command],
                                   stdout=self.log, stderr=self.log)

        def stop():
            program.terminate()
            program.wait()

        self.addCleanup(stop)

    def ask(self, path, body=None):
        request = urllib.request.Request(
            self.http + path, None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def is_up(self):
        try:
            self.ask("/health")
            return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def start_all(self):
        self.start(DAEMON, "--listen", self.address, "--kv-events-endpoint",
                   self.events, "--kv-events-replay-endpoint", self.replays)
        self.start(ENGINE, "--mode", "sim", "--time-scale", "0", "--num-blocks",
                   NUM_BLOCKS, "--address", self.address)
        self.start(PACKAGES, "-m", "dynamo.indexer", "--port",
                   self.http.rsplit(":", 1)[1])
        wait_until("the indexer answers", self.is_up)

    def register(self):
        self.ask("/register", {
            "instance_id": 1, "endpoint": self.events, "model_name": "m",
            "block_size": PAGE_SIZE, "replay_endpoint": self.replays})

    def load(self, seed, *flags):
        subprocess.run([BENCH, "serve", "--address", self.address,
                        "--num-prompts", "60", "--random-input-len", "1500",
                        "--random-range-ratio", "0.9", "--random-output-len",
                        "40", "--seed", str(seed), "--keep-prefix-cache",
                        "--disable-tqdm", *flags],
                       check=True, stdout=self.log, stderr=self.log)

    def tree_size(self):
        # Deep chains that share blocks: the dump has each block once.
        dumped = self.ask("/dump")
        (index,) = dumped.values()
        hashes = set()
        for event in index["events"]:
            for block in event["event"]["data"]["stored"]["blocks"]:
                hashes.add(block["block_hash"])
        return len(hashes)

    def matched(self, tokens):
        # Its last block would need no token computed: all of them count here.
        answer = self.ask("/query", {"token_ids": tokens, "model_name": "m"})
        return answer["scores"].get("1", {}).get("0", 0)

    def decoded_by_vllm(self, payloads):
        """The tokens up to the end of each block that vLLM's classes tell."""
        answer = subprocess.run(
            [PACKAGES, pathlib.Path(__file__).with_name("vllm_kv_events.py"),
             pathlib.Path(PACKAGES).parents[1] /
             "files/vllm/vllm/distributed/kv_events.py"],
            input=b"".join(len(payload).to_bytes(4, "big") + payload
                           for payload in payloads),
            check=True, stdout=subprocess.PIPE, stderr=self.log).stdout
        paths = {None: ()}
        # A parent comes before its children.
        for stored, parent, tokens in json.loads(answer):
            paths[stored] = paths[parent] + tuple(tokens)
        del paths[None]
        return sorted(paths.values())

    def test_others_know_what_is_cached(self):
        self.start_all()
        # The load begins before the indexer follows: it asks for replays.
        counter = Counter(self.events)
        truth = router.Daemon(self.address)
        self.load(1)
        self.register()
        seed = 2
        while counter.num_told < NUM_EVENTS:
            prefix = str(seed % 5 * 100)
            self.load(seed % 7, "--random-prefix-len", prefix)
            counter.read()
            seed += 1
        index = truth.index

        # Events and stream may agree for a moment while both are behind. Without
        # requests, the daemon's count of cached blocks is that of all it has.
        admin = router.admin_pb2_grpc.AdminServiceStub(
            router.grpc.insecure_channel(self.address))
        stats = admin.GetStats(router.admin_pb2.GetStatsRequest(), timeout=60)
        self.assertEqual((stats.num_running, stats.num_waiting), (0, 0))

        def is_settled():
            counter.read()
            with truth.lock:
                return (index.current and len(counter.cached) ==
                        len(index.blocks) == stats.cached_blocks)

        wait_until("events and stream tell all that the daemon has", is_settled)
        wait_until("the indexer knows as many blocks",
                   lambda: self.tree_size() == len(index.blocks))
        with truth.lock:
            paths = {}  # id of a block: tokens up to its end
            for block, (parent, tokens) in sorted(index.blocks.items()):
                if parent in index.scopes:
                    paths[block] = tokens
                else:
                    paths[block] = paths[parent] + tokens
        self.assertEqual(len(paths), len(counter.cached))
        for block, tokens in list(paths.items())[::max(
                1, len(paths) // NUM_QUERIES)]:
            self.assertEqual(self.matched(list(tokens)), len(tokens))
            # And no more than that.
            self.assertEqual(self.matched(list(tokens) + [1] * PAGE_SIZE),
                             index.match(tokens + (1,) * PAGE_SIZE))
        self.assertEqual(self.decoded_by_vllm(counter.payloads),
                         sorted(paths.values()))
        print(f"{counter.num_told} blocks told, {len(paths)} cached",
              file=sys.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
