#!/usr/bin/env python3
"""A frontend in Python: submits prompts, streams their tokens.

Needs a running blockmgrd with an engine (examples/python/engine.py, or
blockmgr-engine), and the package blockmgr: see engine.py.
"""
import argparse
import asyncio
import sys

import blockmgr
from blockmgr.client import Client, eviction_message
from blockmgr.v1 import common_pb2


async def run(arguments):
    """Whether all requests ended well."""
    fields = {}
    if arguments.temperature > 0:  # else the most likely tokens
        fields["sampling"] = common_pb2.SamplingParams(
            temperature=arguments.temperature, seed=arguments.seed)
    if arguments.keep_ratio:
        fields["eviction"] = eviction_message("keydiff | adakv | topk",
                                              arguments.keep_ratio)
    async with Client(arguments.address) as client:
        requests = [
            # In place of a tokenizer: a prompt that no other begins with.
            await client.submit(
                [(i + position) % 256
                 for position in range(arguments.prompt_len)],
                arguments.max_tokens, **fields)
            for i in range(arguments.num_prompts)
        ]
        # To stream: async for chunk in request.
        results = await asyncio.gather(
            *(request.result() for request in requests),
            return_exceptions=True)
        stats = await client.stats()
    good = [result for result in results
            if not isinstance(result, BaseException) and
            result.finish_reason in ("length", "stop")]
    num_tokens = sum(len(result.tokens) for result in good)
    print(f"{len(good)} of {len(results)} requests, {num_tokens} tokens; the "
          f"daemon has evicted {stats.num_evictions} times, "
          f"{stats.evicted_bytes / 2**20:.0f} MiB")
    return len(good) == len(results)


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
        sys.exit(0 if asyncio.run(run(parser.parse_args())) else 1)
    except (PermissionError, blockmgr.Error) as error:
        sys.exit(f"frontend.py: {error}")


if __name__ == "__main__":
    main()
