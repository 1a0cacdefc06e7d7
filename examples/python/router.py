#!/usr/bin/env python3
"""A router in Python: knows what daemons have cached, without asking them.

  router.py --address unix:/tmp/a --address unix:/tmp/b         # what they have
  router.py --address .. --prompt 1 2 3 4                       # who has most

Every daemon tells its prefix cache in a stream (AdminService.WatchPrefixCache);
PrefixIndex here keeps it up to date, and finds how much of a prompt is there.
Needs the package blockmgr: see engine.py.
"""
import argparse
import dataclasses
import sys
import threading
import time

import grpc

import blockmgr
from blockmgr.v1 import admin_pb2, admin_pb2_grpc


@dataclasses.dataclass
class Region:
    """A prefix that was compressed by a plan."""
    scope: int
    tail: int  # the block of its last page
    length: int  # tokens
    plan: str
    tokens: list = dataclasses.field(default_factory=list)
    has_media: bool = False
    is_told: bool = False  # all of it


class PrefixIndex:
    """What one daemon has cached, as far as it has told."""

    def __init__(self):
        self.position = None  # to go on from in another stream
        self.current = False  # it has told all there is
        self.num_resets = 0
        self._clear()

    def _clear(self):
        self.page_size = 0
        self.scopes = {}  # by id: (tenant, lora, salt)
        self.blocks = {}  # by id: what it is found by
        self.found = {}  # ids of blocks, by what comes before them and tokens
        self.regions = {}  # by id

    def apply(self, update):
        """Forgets, erases, then stores: no id is ever used for two things."""
        self.current = update.current
        if update.reset:
            self.num_resets += 1
            self._clear()
        self.page_size = update.page_size
        for removed in update.removed:
            self.scopes.pop(removed, None)
            self.regions.pop(removed, None)
            name = self.blocks.pop(removed, None)
            if self.found.get(name) == removed:
                del self.found[name]
        for scope in update.scopes:
            self.scopes[scope.id] = (scope.tenant, scope.lora, scope.cache_salt)
        for block in update.blocks:
            # Media would be part of the name: here, what has some is never
            # found.
            name = (block.parent_id, tuple(block.token_ids))
            self.blocks[block.id] = None if block.media else name
            if not block.media:
                self.found[name] = block.id
        for piece in update.regions:
            if piece.first_token == 0:
                self.regions[piece.id] = Region(
                    piece.scope_id, piece.tail_id, piece.length, piece.plan)
            region = self.regions[piece.id]
            region.tokens.extend(piece.token_ids)
            region.has_media |= bool(piece.media)
            region.is_told = piece.last
        if update.HasField("position"):
            self.position = update.position

    def match(self, tokens, scope=("", "", ""), plan=None):
        """Tokens of a prompt whose KV is cached, in whole blocks; with a plan,
        compressed by it, too."""
        longest = 0
        for root, name in self.scopes.items():
            if name == scope:
                longest = max(longest, self._follow(root, tokens, 0))
        for region_id, region in self.regions.items():
            if (region.plan == plan and region.is_told and
                    not region.has_media and region.tail in self.blocks and
                    self.scopes.get(region.scope) == scope and
                    tokens[:region.length] == region.tokens):
                longest = max(longest, self._follow(region_id, tokens,
                                                    region.length))
        return longest

    def _follow(self, parent, tokens, begin):
        while self.page_size and begin + self.page_size <= len(tokens):
            page = tuple(tokens[begin:begin + self.page_size])
            parent = self.found.get((parent, page))
            if parent is None:
                break
            begin += self.page_size
        return begin


class Daemon:
    """A daemon that is followed, across its restarts, by a thread."""

    def __init__(self, address):
        self.address = address
        self.index = PrefixIndex()
        self.error = None
        self.lock = threading.Lock()
        # A stream on which nothing comes may be one whose daemon is gone.
        self._stub = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(
            address, options=[("grpc.keepalive_time_ms", 20000),
                              ("grpc.keepalive_timeout_ms", 5000)]))
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        while True:
            try:
                stream = self._stub.WatchPrefixCache(
                    admin_pb2.WatchPrefixCacheRequest(
                        position=self.index.position))
                for update in stream:
                    with self.lock:
                        self.error = None
                        self.index.apply(update)
            except grpc.RpcError as error:
                with self.lock:
                    self.error = f"{error.code().name}: {error.details()}"
                    self.index.current = False
            time.sleep(1)


def report(daemon):
    with daemon.lock:
        index = daemon.index
        state = daemon.error or ("current" if index.current else "catching up")
        return (f"{daemon.address}: {len(index.blocks)} blocks, "
                f"{len(index.regions)} compressed prefixes, "
                f"{len(index.scopes)} scopes, {state}")


def route(daemons, arguments):
    """Prints how much each has of the prompt, the best first."""
    deadline = time.monotonic() + arguments.timeout
    while not all(daemon.index.current for daemon in daemons):
        if time.monotonic() > deadline:
            for daemon in daemons:
                print(report(daemon), file=sys.stderr)
            return False
        time.sleep(0.01)
    scope = (arguments.tenant, arguments.lora, arguments.cache_salt)
    found = []
    for daemon in daemons:
        with daemon.lock:
            found.append((daemon.index.match(arguments.prompt, scope,
                                             arguments.plan), daemon.address))
    for tokens, address in sorted(found, key=lambda one: -one[0]):
        print(f"{address}: {tokens} of {len(arguments.prompt)} tokens")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", action="append",
                        help="of a daemon: unix:PATH or HOST:PORT; again for "
                        "each (default: this user's, or the service's)")
    parser.add_argument("--prompt", type=int, nargs="+", metavar="TOKEN",
                        help="say who has most of it; without: report what all "
                        "have, until interrupted")
    parser.add_argument("--tenant", default="")
    parser.add_argument("--lora", default="")
    parser.add_argument("--cache-salt", default="")
    parser.add_argument("--plan", help="of the compressed prefixes that will do")
    parser.add_argument("--interval", type=float, default=1,
                        help="seconds between reports (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=30,
                        help="seconds to wait for all daemons (default: "
                        "%(default)s)")
    arguments = parser.parse_args()
    try:
        addresses = arguments.address or [blockmgr.default_daemon_address()]
    except PermissionError as error:
        sys.exit(f"router.py: {error}")
    daemons = [Daemon(address) for address in addresses]
    if arguments.prompt:
        sys.exit(0 if route(daemons, arguments) else 1)
    try:
        while True:
            time.sleep(arguments.interval)
            for daemon in daemons:
                print(report(daemon), flush=True)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
