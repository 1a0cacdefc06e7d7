#!/usr/bin/env python3
"""What vLLM's own decoder makes of KV events: its classes, without the rest of
vLLM.

  vllm_kv_events.py FILE < BATCHES

Runs with the Python of scripts/fleet_packages.sh, which has fetched FILE:
vllm/distributed/kv_events.py. Standard input has payloads of
KV events in order, each after its length (4 bytes, big-endian). Prints as JSON
what is cached after them: [[hash, parent's hash or null, [token..]]..].
"""
import importlib.util
import json
import sys
from unittest import mock

import msgspec


def load_classes(path):
    """Returns vLLM's file as a module. What it imports to publish events is left
    empty."""
    for name in ("zmq", "vllm.config.kv_events", "vllm.logger",
                 "vllm.utils.network_utils", "vllm.v1.core.kv_cache_utils"):
        sys.modules[name] = mock.MagicMock()
    # As vLLM has it.
    sys.modules["vllm.v1.core.kv_cache_utils"].ExternalBlockHash = bytes | int
    spec = importlib.util.spec_from_file_location("kv_events", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kv_events"] = module
    spec.loader.exec_module(module)
    return module


def apply(kv_events, event, cached):
    if isinstance(event, kv_events.AllBlocksCleared):
        cached.clear()
    elif isinstance(event, kv_events.BlockRemoved):
        for removed in event.block_hashes:
            del cached[removed]
    else:
        parent = event.parent_block_hash
        for number, stored in enumerate(event.block_hashes):
            begin = number * event.block_size
            cached[stored] = (parent,
                              event.token_ids[begin:begin + event.block_size])
            parent = stored


def main():
    kv_events = load_classes(sys.argv[1])
    decoder = msgspec.msgpack.Decoder(type=kv_events.KVEventBatch)
    cached = {}
    while length := sys.stdin.buffer.read(4):
        batch = decoder.decode(
            sys.stdin.buffer.read(int.from_bytes(length, "big")))
        for event in batch.events:
            apply(kv_events, event, cached)
    json.dump([[stored, *rest] for stored, rest in cached.items()], sys.stdout)


if __name__ == "__main__":
    main()
