#!/usr/bin/env python3
"""A frontend in Python: submits prompts, streams their tokens.

Needs a running blockmgrd with an engine (examples/python/engine.py, or
blockmgr-engine), and the package blockmgr: see engine.py.
"""
import argparse
import sys
import uuid

import grpc

import blockmgr
from blockmgr.v1 import (admin_pb2, admin_pb2_grpc, common_pb2, request_pb2,
                         request_pb2_grpc)


def eviction(keep_ratio):
    """keydiff | adakv | topk, once after the prompt."""
    policy = common_pb2.EvictionPolicy()
    policy.keydiff.SetInParent()
    policy.adakv.SetInParent()
    policy.topk.SetInParent()
    return request_pb2.RequestEviction(
        mode=request_pb2.EVICTION_MODE_AFTER_PREFILL, policy=policy,
        target=common_pb2.EvictionTarget(keep_ratio=keep_ratio))


def run(arguments):
    channel = grpc.insecure_channel(arguments.address or
                                    blockmgr.default_daemon_address())
    requests = request_pb2_grpc.RequestServiceStub(channel)
    session = uuid.uuid4().hex
    # One stream for all requests of this client. The daemon sends an empty
    # batch at once: from then on it knows the stream.
    stream = requests.StreamTokens(
        request_pb2.StreamTokensRequest(client_session=session),
        wait_for_ready=True)
    next(stream)
    for i in range(arguments.num_prompts):
        request = request_pb2.SubmitRequest(
            client_session=session, request_id=f"{session}-{i}",
            max_tokens=arguments.max_tokens)
        if arguments.temperature > 0:  # else the most likely tokens
            request.sampling.temperature = arguments.temperature
            request.sampling.seed = arguments.seed
        # In place of a tokenizer: a prompt that no other begins with.
        request.prompt_token_ids.extend(
            (i + position) % 256 for position in range(arguments.prompt_len))
        if arguments.keep_ratio:
            request.eviction.CopyFrom(eviction(arguments.keep_ratio))
        requests.Submit(request, timeout=60)
    num_tokens, num_ended, num_good = 0, 0, 0
    good = (request_pb2.FINISH_REASON_LENGTH, request_pb2.FINISH_REASON_STOP)
    while num_ended < arguments.num_prompts:
        for chunk in next(stream).chunks:
            num_tokens += len(chunk.tokens)
            if chunk.finish_reason:
                num_ended += 1
                num_good += chunk.finish_reason in good
    stats = admin_pb2_grpc.AdminServiceStub(channel).GetStats(
        admin_pb2.GetStatsRequest(), timeout=60)
    print(f"{num_good} of {num_ended} requests, {num_tokens} tokens; the daemon "
          f"has evicted {stats.num_evictions} times, "
          f"{stats.evicted_bytes / 2**20:.0f} MiB")
    stream.cancel()
    return num_good == num_ended


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address",
                        help="of the daemon: unix:PATH or HOST:PORT (default: "
                        "this user's, or the service's)")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--keep-ratio", default="0.2",
                        help="of entries, as a decimal; '': what the daemon "
                        "does by default (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0,
                        help="of the engine's sampling (default: greedy)")
    parser.add_argument("--seed", type=int, default=0,
                        help="of the engine's sampling (default: %(default)s)")
    try:
        sys.exit(0 if run(parser.parse_args()) else 1)
    except PermissionError as error:
        sys.exit(f"frontend.py: {error}")
    except grpc.RpcError as error:
        sys.exit(f"frontend.py: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
