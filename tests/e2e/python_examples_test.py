#!/usr/bin/env python3
"""The examples in Python against a real daemon.

  python_examples_test.py BLOCKMGRD FOLDER_OF_MESSAGES
"""
import asyncio
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

DAEMON, MESSAGES = sys.argv[1:3]
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples/python"
sys.path[:0] = [str(EXAMPLES), MESSAGES]

# pylint: disable=wrong-import-position
import blockmgr  # noqa: E402
import engine  # noqa: E402
import grpc  # noqa: E402
import router  # noqa: E402
from blockmgr import client  # noqa: E402
from blockmgr.v1 import (admin_pb2, admin_pb2_grpc,  # noqa: E402
                         common_pb2, engine_pb2, request_pb2,
                         request_pb2_grpc)


# Of all clients: older grpcio does not let go of its first one.
LOOP = asyncio.new_event_loop()


class DefaultAddressTest(unittest.TestCase):
    """The cases of scheduler/server/default_address_test.cc."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.temporary = self.make("tmp", 0o1777)
        self.own = f"{self.temporary}/blockmgr-{os.geteuid()}"
        self.service = f"{self.folder.name}/service"

    def make(self, name, mode):
        path = f"{self.folder.name}/{name}"
        os.mkdir(path)
        os.chmod(path, mode)
        return path

    def bind(self, folder):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{folder}/blockmgr.sock")

    def find(self, runtime=""):
        return blockmgr.default_daemon_address(runtime, self.service,
                                               self.temporary)

    def expect_in(self, folder, runtime=""):
        self.assertEqual(self.find(runtime), f"unix:{folder}/blockmgr.sock")

    def test_takes_a_folder_that_only_this_user_may_write_to(self):
        runtime = self.make("run", 0o700)
        self.expect_in(runtime, runtime)
        for mode in (0o770, 0o702, 0o1777):
            os.chmod(runtime, mode)
            self.expect_in(self.own, runtime)
        for none in ("", "/no/such/folder", "run"):
            self.expect_in(self.own, none)
        self.assertEqual(os.stat(self.own).st_mode & 0o7777, 0o700)

    def test_refuses_what_somebody_has_put_there(self):
        os.symlink(self.make("elsewhere", 0o700), self.own)
        with self.assertRaisesRegex(PermissionError, self.own):
            self.find()
        os.unlink(self.own)
        self.make(os.path.relpath(self.own, self.folder.name), 0o770)
        with self.assertRaisesRegex(PermissionError, self.own):
            self.find()
        runtime = self.make("run", 0o700)
        pathlib.Path(runtime, "blockmgr.sock").touch()
        with self.assertRaisesRegex(PermissionError, "expected a socket"):
            self.find(runtime)

    def test_a_client_without_a_daemon_of_its_own_looks_for_the_service(self):
        runtime = self.make("run", 0o700)
        self.make("service", 0o750)
        self.expect_in(self.service)
        self.bind(self.service)
        self.expect_in(self.service, runtime)
        os.chmod(self.service, 0o770)
        with self.assertRaisesRegex(PermissionError, self.service):
            self.find(runtime)
        self.bind(runtime)
        self.expect_in(runtime, runtime)

    @unittest.skipIf(os.geteuid() != 0, "only root gives sockets away")
    def test_a_client_connects_to_no_socket_of_another_user(self):
        self.make("service", 0o750)
        self.bind(self.service)
        runtime = self.make("run", 0o700)
        os.chown(self.service, 65534, 65534)
        os.chown(f"{self.service}/blockmgr.sock", 65534, 65534)
        self.expect_in(self.service, runtime)
        os.chown(f"{self.service}/blockmgr.sock", 65533, 65533)
        with self.assertRaisesRegex(PermissionError, "user 65534 or of root"):
            self.find(runtime)
        self.bind(runtime)
        os.chown(f"{runtime}/blockmgr.sock", 65534, 65534)
        with self.assertRaisesRegex(PermissionError, "user 0 or of root"):
            self.find(runtime)


class ExamplesTest(unittest.TestCase):
    """A daemon and the engine."""
    daemon_flags = ()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        # Where all find each other without an address.
        self.environment = dict(os.environ, PYTHONPATH=MESSAGES,
                                XDG_RUNTIME_DIR=self.folder.name)
        self.address = f"unix:{self.folder.name}/blockmgr.sock"
        self.daemon = subprocess.Popen(
            [DAEMON, "--log-level", "warn", *self.daemon_flags],
            env=self.environment)
        self.engine = subprocess.Popen(
            [sys.executable, EXAMPLES / "engine.py", "--num-blocks", "1100"],
            env=self.environment, text=True, stdout=subprocess.PIPE)

    def tearDown(self):
        for process in (self.engine, self.daemon):
            process.kill()
            process.wait()
        self.engine.stdout.close()
        self.folder.cleanup()

    def run_example(self, name, *flags):
        return subprocess.run(
            [sys.executable, EXAMPLES / name, *flags], env=self.environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=100, check=False)

    def frontend(self, *flags):
        return self.run_example("frontend.py", *flags)

    def router(self, *flags):
        return self.run_example("router.py", *flags)

    def wait_for_engine(self):
        """Until a request is served: an engine takes a while to attach."""
        deadline = time.monotonic() + 60
        while True:
            done = self.frontend("--num-prompts", "1", "--prompt-len", "10",
                                 "--keep-ratio", "")
            if done.returncode == 0:
                return
            self.assertIsNone(self.engine.poll())
            self.assertLess(time.monotonic(), deadline, done.stderr)

    def open_stream(self, session):
        """RequestService, and an open stream of its tokens."""
        requests = request_pb2_grpc.RequestServiceStub(
            grpc.insecure_channel(self.address))
        stream = requests.StreamTokens(
            request_pb2.StreamTokensRequest(client_session=session))
        next(stream)
        return requests, stream

    def serve(self, **fields):
        """A request's tokens, until it has ended well."""
        session = uuid.uuid4().hex
        requests, stream = self.open_stream(session)
        requests.Submit(request_pb2.SubmitRequest(
            client_session=session, request_id=session, **fields))
        tokens = []
        for batch in stream:
            for chunk in batch.chunks:
                tokens.extend(chunk.tokens)
                if chunk.finish_reason:
                    self.assertEqual(chunk.finish_reason,
                                     request_pb2.FINISH_REASON_LENGTH)
                    stream.cancel()
                    return tokens

    def stats(self):
        return admin_pb2_grpc.AdminServiceStub(
            grpc.insecure_channel(self.address)).GetStats(
                admin_pb2.GetStatsRequest())


class EngineTablesTest(unittest.TestCase):
    """The block tables of engine.py, after plans that are written here."""

    def run_plans(self, *plans):
        tables = engine.Engine(common_pb2.ModelLayout(
            page_size=16, num_layers=1, num_heads=2, num_blocks=100))
        for plan in plans:
            tables.run(engine_pb2.StepPlan(**plan))
        return {slot: sequence.tail
                for slot, sequence in tables.sequences.items()}

    def test_a_fork_writes_to_a_copy_of_the_last_block(self):
        def start(slot, **fields):
            return engine_pb2.SequenceStart(slot=slot, num_tokens=41, **fields)

        prompt = dict(step=1, start_tokens=range(41), starts=[start(0)],
                      slots=[0], positions=[0], num_tokens=[40],
                      samples=bytes([0]), blocks=[11, 12, 13], block_offsets=[0, 3])
        fork = dict(step=2, start_tokens=range(41),
                    starts=[start(1, source=0, num_cached_tokens=40)],
                    copies=[engine_pb2.CopyOnWrite(
                        slot=1, source=13, destination=14, num_tokens=8)],
                    slots=[0, 1], positions=[40, 40], num_tokens=[1, 1],
                    samples=bytes([1, 1]), block_offsets=[0, 0, 0])
        self.assertEqual(self.run_plans(prompt, fork),
                         {0: [11, 12, 13], 1: [11, 12, 14]})

    def test_a_start_on_a_part_of_a_cached_block_has_the_copy_already(self):
        plan = dict(step=1, start_tokens=range(41),
                    starts=[engine_pb2.SequenceStart(
                        slot=0, num_tokens=41, num_cached_tokens=40)],
                    copies=[engine_pb2.CopyOnWrite(
                        slot=0, source=13, destination=14, num_tokens=8)],
                    slots=[0], positions=[40], num_tokens=[1],
                    samples=bytes([1]), blocks=[11, 12, 14],
                    block_offsets=[0, 3])
        self.assertEqual(self.run_plans(plan), {0: [11, 12, 14]})


class DefaultEvictionTest(ExamplesTest):
    daemon_flags = ("--keep-ratio", "0.2", "--eviction", "knorm | uniform")

    def test_requests_that_say_nothing_are_evicted_from(self):
        self.wait_for_engine()
        done = self.frontend("--num-prompts", "12", "--keep-ratio", "")
        self.assertRegex(done.stdout, r"^12 of 12 requests, 384 tokens; "
                         r"the daemon has evicted 1[23] times", done.stderr)
        # Those that say that they do not want it are left alone.
        before = self.stats().num_evictions
        self.serve(prompt_token_ids=range(500), max_tokens=2,
                   eviction=request_pb2.RequestEviction())
        self.assertEqual(self.stats().num_evictions, before)
        self.serve(prompt_token_ids=range(500), max_tokens=2)
        self.assertEqual(self.stats().num_evictions, before + 1)

    def test_forks_are_evicted_from_as_their_parents(self):
        self.wait_for_engine()
        requests, stream = self.open_stream("s")
        before = self.stats().num_evictions
        requests.Submit(request_pb2.SubmitRequest(
            client_session="s", request_id="parent", max_tokens=10000,
            prompt_token_ids=range(500),
            eviction=request_pb2.RequestEviction()))
        self.assertEqual(len(self.serve(prompt_token_ids=range(500),
                                        max_tokens=2, fork_of="parent")), 2)
        self.assertEqual(self.stats().num_evictions, before)
        stream.cancel()


class PythonExamplesTest(ExamplesTest):
    def test_the_engine_is_told_what_to_run(self):
        self.wait_for_engine()
        for sampling, seed in ((None, 0),
                               (common_pb2.SamplingParams(seed=5), 5)):
            tokens = self.serve(prompt_token_ids=[7, 9], max_tokens=2,
                                sampling=sampling)
            first = 31 * 9 + 2 + seed
            self.assertEqual(tokens,
                             [first, 31 * first + 3 + seed])

    def test_serves_with_and_without_eviction(self):
        self.wait_for_engine()
        # 12 prompts of 126 blocks do not fit at a time.
        done = self.frontend("--num-prompts", "12", "--keep-ratio", "")
        self.assertRegex(done.stdout, r"^12 of 12 requests, 384 tokens; "
                         r"the daemon has evicted 0 times", done.stderr)
        done = self.frontend("--num-prompts", "12", "--keep-ratio", "0.2")
        self.assertRegex(done.stdout, r"^12 of 12 requests, 384 tokens; "
                         r"the daemon has evicted 12 times", done.stderr)
        # At least three quarters of 12 prompts of 125 blocks of 2 MiB.
        freed = int(re.search(r"(\d+) MiB", done.stdout).group(1))
        self.assertGreater(freed, 0.75 * 12 * 125 * 2)
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(60), 0)
        self.assertEqual(self.engine.wait(60), 0)
        self.assertRegex(self.engine.stdout.read(), r"[1-9][0-9]+ steps")

    def test_a_router_knows_what_is_cached(self):
        self.wait_for_engine()
        # Prompts i, i + 1, .. of 2000 tokens, 125 pages.
        done = self.frontend("--num-prompts", "2", "--keep-ratio", "")
        self.assertEqual(done.returncode, 0, done.stderr)
        prompt = [str(token % 256) for token in range(1, 2001)]
        for tokens, cached in ((prompt, 2000), (prompt[:40], 32),
                               (prompt[:32] + ["7"] * 32, 32),
                               (["7"] + prompt, 0)):
            done = self.router("--prompt", *tokens)
            self.assertEqual(done.stdout, f"{self.address}: {cached} of "
                             f"{len(tokens)} tokens\n", done.stderr)
        done = self.router("--tenant", "other", "--prompt", *prompt)
        self.assertIn(" 0 of 2000 tokens", done.stdout, done.stderr)

    def test_a_router_knows_compressed_prefixes(self):
        """What it finds is what the daemon finds, and tells when it is gone."""
        self.wait_for_engine()
        requests, stream = self.open_stream("s")

        def serve(prompt):
            """Its tokens that were cached."""
            eviction = client.eviction_message("keydiff | adakv | topk",
                                               "0.2")
            eviction.share_prefix = True
            requests.Submit(request_pb2.SubmitRequest(
                client_session="s", request_id="r", max_tokens=2,
                prompt_token_ids=prompt, eviction=eviction, tenant="t"))
            for batch in stream:
                for chunk in batch.chunks:
                    if chunk.finish_reason:
                        return chunk.num_cached_tokens

        plan = "keydiff | adakv | topk ratio 0.2 multiple of 16"
        daemon = router.Daemon(self.address)
        index = daemon.index

        def match(prompt, tenant="t"):
            with daemon.lock:
                return index.match(prompt, (tenant, "", ""), plan)

        def wait_until(condition):
            deadline = time.monotonic() + 60
            while True:
                with daemon.lock:
                    if index.current and condition():
                        return
                self.assertLess(time.monotonic(), deadline,
                                router.report(daemon))
                time.sleep(0.01)

        def wait_until_told(prompt):
            wait_until(lambda: index.match(prompt, ("t", "", ""), plan) >=
                       len(prompt) // 16 * 16)

        first = list(range(1000, 3000))
        self.assertEqual(serve(first), 0)
        # Its region and the page behind it, which may come one after the other.
        wait_until_told(first)
        (region, ) = index.regions.values()
        self.assertEqual(region.plan, plan)
        # Longer by more than the queries that the eviction observes.
        for prompt, least in ((first + list(range(100)), region.length),
                              (first[:1000] + [1] * 50, 992), ([1] + first, 0)):
            expected = match(prompt)
            self.assertGreaterEqual(expected, least)
            self.assertEqual(match(prompt, "u"), 0)
            self.assertEqual(serve(prompt), expected)
            # The next one finds what this one has left.
            wait_until_told(prompt)
        admin_pb2_grpc.AdminServiceStub(
            grpc.insecure_channel(self.address)).ResetPrefixCache(
                admin_pb2.ResetPrefixCacheRequest())
        wait_until(lambda: not index.blocks and not index.regions)
        with daemon.lock:
            self.assertFalse(index.scopes or index.found)
        self.assertEqual(index.num_resets, 1)
        stream.cancel()

    def test_a_router_waits_for_daemons(self):
        self.wait_for_engine()
        done = self.router("--address", self.address,
                           "--address", f"unix:{self.folder.name}/none",
                           "--timeout", "10", "--prompt", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/none: 0 blocks", done.stderr)
        self.assertIn("UNAVAILABLE", done.stderr)

    def test_an_engine_that_is_refused_fails(self):
        self.wait_for_engine()
        second = self.run_example("engine.py", "--address", self.address)
        self.assertEqual(second.returncode, 1)
        self.assertIn("engine.py: ALREADY_EXISTS", second.stderr)

    def test_errors_are_told(self):
        self.wait_for_engine()
        done = self.frontend("--keep-ratio", "1.5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("frontend.py: target.keep_ratio",
                      done.stderr)


class ClientTest(ExamplesTest):
    """blockmgr.client, without what is compiled."""
    daemon_flags = ("--query-window", "0")

    def run_client(self, use):
        async def body():
            async with client.Client(self.address) as own:
                await asyncio.wait_for(use(own), 60)
        self.wait_for_engine()
        LOOP.run_until_complete(body())

    def test_streams_and_counts(self):
        async def use(own):
            requests = [await own.submit([i, 9], 5) for i in range(20)]
            tokens = []
            async for chunk in requests[3]:
                self.assertEqual(chunk.first_index, len(tokens))
                tokens.extend(chunk.tokens)
            first = 31 * 9 + 2
            self.assertEqual(tokens[:2], [first, 31 * first + 3])
            results = await asyncio.gather(*(request.result() for request in
                                             requests if request.id !=
                                             requests[3].id))
            for result in results:
                self.assertEqual(len(result.tokens), 5)
                self.assertEqual(result.finish_reason, "length")
            self.assertEqual((await own.stats()).num_running, 0)
            async for update in own.watch_prefix_cache():
                if update.current:
                    break
            self.assertGreaterEqual(
                (await own.reset_prefix_cache()).dropped_blocks, 0)
        self.run_client(use)

    def test_evicts_and_cancels(self):
        async def use(own):
            request = await own.submit(list(range(500)), 10000)

            async def until(num_outputs):
                async for chunk in request:
                    if chunk.first_index >= num_outputs:
                        return

            await until(10)
            freed = await request.evict("knorm | adakv", 0.2)
            self.assertGreater(freed.freed_blocks, 15)
            heads = 32 * 8
            await until(60)
            kept = await request.evict("keydiff | external", cut=544,
                                       budgets=[16] * heads)
            self.assertEqual(list(kept.kept_entries), [16] * heads)

            class Scores:  # as numpy arrays are
                def reshape(self, _):
                    return self
                def __len__(self):
                    return heads * 608
                def __getitem__(self, part):
                    return Part(len(range(*part.indices(len(self)))))

            class Part:
                def __init__(self, size):
                    self.size = size
                def tolist(self):
                    return [1.0] * self.size

            await until(140)
            kept = await request.evict("external | uniform", "0.03",
                                       cut=608, scores=Scores())
            self.assertEqual(kept.cut, 608)
            await request.cancel()
            self.assertEqual((await request.result()).finish_reason,
                             "cancelled")
        self.run_client(use)

    def test_errors_have_the_daemons_words(self):
        async def use(own):
            with self.assertRaisesRegex(blockmgr.InvalidArgumentError,
                                        "max_tokens"):
                await own.submit([1], 0)
            request = await own.submit([1], 10000, request_id="a")
            for again in (own, client.Client(self.address)):
                if again is not own:
                    await again.open()
                with self.assertRaisesRegex(ValueError, "a"):
                    await again.submit([1], 1, request_id="a")
            with self.assertRaisesRegex(blockmgr.NotFoundError, "nobody"):
                await own.evict("nobody", "knorm", 0.5)
            with self.assertRaises(blockmgr.FailedPreconditionError):
                await request.evict("snapkv", 0.5)
            with self.assertRaisesRegex(ValueError, "target"):
                await request.evict("knorm")
            await again.close()
            await own.close()
            with self.assertRaises(blockmgr.Error):
                await request.result()
            with self.assertRaises(blockmgr.UnavailableError):
                await own.submit([1], 1)
        self.run_client(use)
        with self.assertRaises(blockmgr.UnavailableError):
            LOOP.run_until_complete(
                client.Client(f"unix:{self.folder.name}/none").open())

    def test_a_submission_that_nobody_waits_for_is_cancelled(self):
        async def use(own):
            class GivesUp:  # the daemon has it, and nobody hears its answer
                def __init__(self, stub):
                    self.stub = stub
                    self.Cancel = stub.Cancel

                async def Submit(self, message):
                    await self.stub.Submit(message)
                    raise asyncio.CancelledError
            stub, own._submit = own._submit, GivesUp(own._submit)
            with self.assertRaises(asyncio.CancelledError):
                await own.submit([1], 10000)
            own._submit = stub
            for _ in range(600):
                stats = await own.stats()
                if stats.num_running + stats.num_waiting == 0:
                    break
                await asyncio.sleep(0.1)
            self.assertEqual(stats.num_running + stats.num_waiting, 0)
            # It did not end by itself.
            self.assertLess(stats.num_output_tokens, 10000)
        self.run_client(use)

    def test_the_end_of_the_daemon_is_told(self):
        async def use(own):
            request = await own.submit([1], 10000)
            self.daemon.kill()
            with self.assertRaises(blockmgr.UnavailableError):
                await request.result()
        self.run_client(use)


class SilentDaemonTest(unittest.TestCase):
    """Daemons whose stream brings nothing."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = f"{folder.name}/blockmgr.sock"

    async def fail_to_open(self, timeout):
        with self.assertRaisesRegex(blockmgr.UnavailableError, self.path):
            await client.Client(f"unix:{self.path}").open(timeout)

    def test_a_daemon_that_hangs_is_unavailable(self):
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(self.path)
            silent.listen()
            LOOP.run_until_complete(self.fail_to_open(0.2))

    def test_a_stream_that_ends_at_once_is_unavailable(self):
        class Ends(request_pb2_grpc.RequestServiceServicer):
            async def StreamTokens(self, request, context):
                for batch in ():
                    yield batch

        async def body():
            server = grpc.aio.server()
            request_pb2_grpc.add_RequestServiceServicer_to_server(Ends(), server)
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
            await self.fail_to_open(30)
            await server.stop(None)
        LOOP.run_until_complete(body())


class ResultTest(unittest.TestCase):
    def result_of(self, *chunks):
        request = client.Request(None, "a")
        for chunk in chunks:
            request._chunks.put_nowait(chunk)
        return LOOP.run_until_complete(request.result())

    def test_has_all_tokens_and_what_ended_the_request(self):
        more = request_pb2.TokenChunk(tokens=[7, 8])
        end = request_pb2.TokenChunk(
            tokens=[9], finish_reason=request_pb2.FINISH_REASON_STOP,
            num_cached_tokens=16, num_preemptions=2)
        self.assertEqual(self.result_of(more, end), client.Result(
            tokens=[7, 8, 9], finish_reason="stop", num_cached_tokens=16,
            num_preemptions=2, stop=None))
        end.stop = 0
        self.assertEqual(self.result_of(more, end).stop, 0)


class PolicyMessagesTest(unittest.TestCase):
    def test_say_what_the_text_says(self):
        message = client.policy_message(
            " snapkv( window = 64,pool=avg) | pyramid(beta=3) | critical("
            "gqa_product=true) | protect(sinks=4) | round(token)")
        self.assertEqual(message, common_pb2.EvictionPolicy(
            snapkv=common_pb2.EvictionPolicy.SnapKv(window=64, pool=1),
            pyramid=common_pb2.EvictionPolicy.Pyramid(beta=3),
            critical=common_pb2.EvictionPolicy.Critical(gqa_product=True),
            protect=common_pb2.EvictionPolicy.Protection(sinks=4),
            rounding=common_pb2.EvictionPolicy.ROUNDING_TOKEN))
        message = client.policy_message("keydiff | protect(recent=10%)")
        self.assertEqual(message.protect.recent_percent, 10)
        message = client.policy_message("external | external")
        self.assertTrue(message.HasField("external_scores"))
        self.assertTrue(message.HasField("external_budgets"))

    def test_name_what_is_wrong(self):
        for text, word in (("nobody", "nobody"), ("snapkv(windows=3)", "windows"),
                           ("snapkv(window=x)", "window"), ("", "stage"),
                           ("snapkv(pool=min)", "pool"), ("snapkv(", "stage"),
                           ("knorm | knorm", "knorm"), ("round(up)", "rounding"),
                           ("expected_attention(cov=maybe)", "cov")):
            with self.assertRaisesRegex(blockmgr.InvalidArgumentError, word):
                client.policy_message(text)
        with self.assertRaisesRegex(ValueError, "mode"):
            client.eviction_message("knorm", 0.5, "sometimes")

    def test_targets_are_exact(self):
        for target, field, value in ((0.29, "keep_ratio", "0.29"),
                                     (1.0, "keep_ratio", "1"),
                                     ("0.2", "keep_ratio", "0.2"),
                                     (512, "tokens_per_head", 512)):
            self.assertEqual(getattr(client.target_message(target), field),
                             value)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
