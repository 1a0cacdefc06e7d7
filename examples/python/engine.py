#!/usr/bin/env python3
"""A host engine in Python, without a model.

Attaches to a running blockmgrd and does what an engine has to do with plans:
keeps a table per sequence slot, applies deltas in their order, answers tokens
and evictions. Where a real engine launches kernels there is a comment. See
docs/engine.md.

The messages are the Python package blockmgr: of an installation in
PREFIX/share/blockmgr/python, of a build in build/dev/python:

  PYTHONPATH=/opt/blockmgr/share/blockmgr/python ./engine.py
"""
import argparse
import dataclasses
import queue
import sys

import grpc

import blockmgr
from blockmgr.v1 import common_pb2, engine_pb2, engine_pb2_grpc

VOCABULARY = 128256


@dataclasses.dataclass
class Sequence:
    """What is known of the sequence in one slot."""
    tokens: list
    seed: int  # of its sampling
    cut: int = 0  # a region stands for positions [0, cut)
    kept: tuple = ()  # its entries per (layer, head)
    tail: list = dataclasses.field(default_factory=list)  # blocks, from cut on
    num_computed: int = 0


class Engine:
    """Tables, and the execution of one plan after the other."""

    def __init__(self, layout):
        self.layout = layout
        self.sequences = {}  # by slot
        self.regions = {}  # kept by name, for others to start with: (cut, kept)

    def run(self, plan):
        """Applies a plan; the StepResult that answers it."""
        before = dict(self.sequences)
        for slot in plan.released:
            del self.sequences[slot]
        for start in plan.starts:
            self._start(start, plan, before)
        for region in plan.dropped_regions:
            del self.regions[region]
        for copy in plan.copies:
            # Kernels: copy the first num_tokens rows of copy.source.
            tail = self.sequences[copy.slot].tail
            if tail:  # else the destination is one of the new blocks
                assert tail[-1] == copy.source, "a copy of the last block"
                tail[-1] = copy.destination
        result = engine_pb2.StepResult(step=plan.step)
        for i, slot in enumerate(plan.slots):
            result.sampled.append(self._run_sequence(i, slot, plan))
        for order in plan.evictions:
            result.evictions.append(self._evict(order))
        return result

    def _start(self, start, plan, before):
        begin = start.token_begin
        sequence = Sequence(
            tokens=list(plan.start_tokens[begin:begin + start.num_tokens]),
            # start.info has what its frontend asked for; also its id, adapter
            # and media.
            seed=start.info.sampling.seed,
            num_computed=start.num_cached_tokens)
        if start.HasField("source"):  # a fork: of a table before this plan
            source = before[start.source]
            sequence.cut, sequence.kept = source.cut, source.kept
            length = start.num_cached_tokens - source.cut
            sequence.tail = source.tail[:-(-length // self.layout.page_size)]
        if start.region:  # a compressed prefix
            sequence.cut, sequence.kept = self.regions[start.region]
        self.sequences[start.slot] = sequence

    def _run_sequence(self, i, slot, plan):
        sequence = self.sequences[slot]
        # The layout has one layer group, so the run has one row of blocks.
        begin, end = plan.block_offsets[i], plan.block_offsets[i + 1]
        sequence.tail.extend(plan.blocks[begin:end])
        first = plan.positions[i]
        last = first + plan.num_tokens[i]
        assert first == sequence.num_computed, "positions are computed in order"
        room = sequence.cut + len(sequence.tail) * self.layout.page_size
        assert last <= room, "every position has a slot in a block"
        # Kernels: compute tokens[first:last], write their K and V to the tail,
        # attend to the region's page lists and to the tail.
        sequence.num_computed = last
        if not plan.samples[i]:
            return -1
        token = (31 * sequence.tokens[-1] + last + sequence.seed) % VOCABULARY
        sequence.tokens.append(token)
        return token

    def _evict(self, order):
        """Keeps as many entries of every head as its even share of the pages."""
        layout, sequence = self.layout, self.sequences[order.slot]
        num_heads = layout.num_layers * layout.num_heads
        pages = order.page_total // num_heads
        kept = (min(pages * layout.page_size, order.cut), ) * num_heads
        # Kernels: score, select, lay out the region on
        # the order's share of plan.destinations, move the survivors there.
        moved = (order.cut - sequence.cut) // layout.page_size
        sequence.tail = sequence.tail[moved:]
        sequence.cut, sequence.kept = order.cut, kept
        if order.region:
            self.regions[order.region] = (order.cut, kept)
        return engine_pb2.EvictionOutcome(ok=True, counts=kept)


def serve(address, layout):
    """Runs steps until the daemon stops; how many. RpcError: anything else."""
    # Plans may be large: gRPC's own limit is 4 MiB.
    channel = grpc.insecure_channel(
        address, options=[("grpc.max_receive_message_length", -1)])
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    # The daemon refuses requests that ask for more than this.
    attached = stub.Attach(
        engine_pb2.AttachRequest(
            layout=layout, engine_name="engine.py", vocabulary_size=VOCABULARY,
            sampling_fields=[common_pb2.SAMPLING_FIELD_TEMPERATURE,
                             common_pb2.SAMPLING_FIELD_SEED]),
        wait_for_ready=True, timeout=60)
    messages = queue.SimpleQueue()

    def send(**fields):
        messages.put(engine_pb2.EngineMessage(epoch=attached.epoch,
                                              session=attached.session,
                                              **fields))

    send()  # the first message has no result
    engine = Engine(layout)
    num_steps = 0
    try:
        for plan in stub.RunSteps(iter(messages.get, None)):
            send(result=engine.run(plan))
            num_steps += 1
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        print(f"engine.py: {error.details()}", file=sys.stderr)
    finally:
        messages.put(None)
    return num_steps


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="The default geometry is Llama-3.1-8B's.")
    parser.add_argument("--address",
                        help="of the daemon: unix:PATH or HOST:PORT (default: "
                        "this user's, or the service's)")
    parser.add_argument("--num-blocks", type=int, default=4096,
                        help="of the pool (default: %(default)s)")
    arguments = parser.parse_args()
    layout = common_pb2.ModelLayout(
        num_layers=32, num_heads=8, num_q_heads=32, head_dim=128, page_size=16,
        dtype=common_pb2.DTYPE_BFLOAT16, num_blocks=arguments.num_blocks)
    try:
        address = arguments.address or blockmgr.default_daemon_address()
        print(f"engine.py: {serve(address, layout)} steps")
    except PermissionError as error:
        sys.exit(f"engine.py: {error}")
    except grpc.RpcError as error:
        sys.exit(f"engine.py: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
