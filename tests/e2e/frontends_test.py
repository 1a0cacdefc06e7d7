#!/usr/bin/env python3
"""What clients that others wrote see of scripts/chat.sh: the openai client, by
the gateway smg, of daemons with a language model.

  frontends_test.py FOLDER_OF_PROGRAMS PACKAGES [TEST..]

Runs with the Python of scripts/fleet_packages.sh, which is PACKAGES.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAMS, PACKAGES = sys.argv[1:3]
if os.path.realpath(sys.prefix) != os.path.realpath(
        pathlib.Path(PACKAGES).parents[1]):
    os.execv(PACKAGES, [PACKAGES, *sys.argv])

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# pylint: disable=wrong-import-position
import compare_fleets  # noqa: E402
import openai  # noqa: E402
from compare_fleets import (PATIENCE_S, Fleet, fetch,  # noqa: E402
                            free_port)

QUESTION = {"role": "user", "content": "What is the capital of France?"}


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.1)


class ClientTest(unittest.TestCase):
    """The openai client and one daemon."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet(PROGRAMS)
        cls.addClassCleanup(cls.fleet.stop)

    def test_chat(self):
        answer = self.fleet.chat([QUESTION])
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertGreater(answer.usage.prompt_tokens, 10)
        self.assertGreater(answer.usage.completion_tokens, 3)
        again = self.fleet.chat([QUESTION])
        self.assertEqual(again.choices[0].message.content,
                         answer.choices[0].message.content)
        self.assertGreaterEqual(
            again.usage.prompt_tokens_details.cached_tokens, 16)

    def test_a_stream_has_the_same_text(self):
        whole = self.fleet.chat([QUESTION]).choices[0].message.content
        pieces = []
        for chunk in self.fleet.chat([QUESTION], stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
        self.assertGreater(len(pieces), 2)
        self.assertEqual("".join(pieces), whole)

    def test_completions(self):
        answer = self.fleet.client.completions.create(
            model=self.fleet.model, prompt="The capital of France is",
            max_tokens=5, temperature=0)
        self.assertIn("Paris", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 5)

    def test_several_answers(self):
        answer = self.fleet.chat([QUESTION], n=3, temperature=1, seed=1)
        self.assertEqual([choice.index for choice in answer.choices],
                         [0, 1, 2])
        for choice in answer.choices:
            self.assertTrue(choice.message.content)

    def test_logprobs(self):
        answer = self.fleet.chat([QUESTION], logprobs=True, top_logprobs=2,
                                 max_tokens=4)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 2)
            # Greedy: the token is the most likely one.
            self.assertAlmostEqual(token.logprob,
                                   token.top_logprobs[0].logprob, 4)

    def test_stop_strings_end_what_the_engine_does(self):
        whole = self.fleet.chat([QUESTION])
        text = whole.choices[0].message.content
        # Begins in one token and ends in another.
        stop = text[text.index("France") + 3:text.index("Paris") + 2]
        answer = self.fleet.chat([QUESTION], stop=["never", stop])
        self.assertEqual(answer.choices[0].message.content,
                         text[:text.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertLess(answer.usage.completion_tokens,
                        whole.usage.completion_tokens)
        # Three words of a list that would go on for long.
        listed = self.fleet.chat(
            [{"role": "user", "content": "Count from 1 to 100."}],
            max_tokens=400, stop=["3"])
        self.assertEqual(listed.choices[0].finish_reason, "stop")
        self.assertLess(listed.usage.completion_tokens, 100)

    def test_whoever_goes_away_costs_nothing_more(self):
        for _ in range(4):
            stream = self.fleet.chat(
                [{"role": "user", "content": "Tell me a long story."}],
                stream=True, max_tokens=1500)
            next(iter(stream))
            stream.close()
        self.assertIn("Paris",
                      self.fleet.chat([QUESTION]).choices[0].message.content)


class FleetTest(unittest.TestCase):
    """Three daemons behind the gateway, and one daemon with all of their pools.
    """

    def test_a_fleet_answers_as_one_daemon_and_finds_as_much(self):
        report = compare_fleets.compare(compare_fleets.parse_options([
            "--bin", PROGRAMS, "--conversations", "12", "--turns", "4",
            "--num-blocks", "384", "--clients", "6", "--open", "2"]),
            routings=["cache_aware"])
        print(*compare_fleets.describe(report), sep="\n", file=sys.stderr)
        for run in report["runs"]:
            self.assertEqual(run["errors"], [])
            self.assertEqual(run["requests"], 48)
            self.assertEqual(run["differences"], [])
            for daemon in run["daemons"]:
                # Every request of the proof is evicted from.
                self.assertGreaterEqual(daemon["evictions"],
                                        daemon["requests_finished"])
        one, fleet = report["runs"]
        self.assertGreater(one["hit_rate"], 0.4)
        self.assertGreaterEqual(fleet["hit_ratio"],
                                compare_fleets.MIN_HIT_RATIO)


class Replica:
    """A daemon and its engine, which can be killed and started again."""

    def __init__(self, folder, name):
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        self._path = pathlib.Path(folder, name)
        self._processes = []
        self._model = subprocess.check_output(
            [ROOT / "scripts/fetch_model.sh"], text=True).strip()

    def start(self):
        logs = [open(f"{self._path}-{name}.log", "w", encoding="utf-8")
                for name in ("daemon", "engine")]
        for log, command in zip(logs, (
                ["blockmgrd", "--listen", self.address,
                 "--metrics-listen", self.metrics],
                ["blockmgr-engine", "--mode", "llama", "--model", self._model,
                 "--address", self.address])):
            self._processes.append(subprocess.Popen(
                [pathlib.Path(PROGRAMS, command[0]), *command[1:]],
                stdout=log, stderr=log, start_new_session=True))
            log.close()
        daemon_log = pathlib.Path(logs[0].name)
        wait_until(lambda: "engine attached" in daemon_log.read_text("utf-8"),
                   "the engine attaches")

    def kill(self):
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []

    def metric(self, name):
        """The sum of a metric's values."""
        lines = fetch(f"http://{self.metrics}/metrics").splitlines()
        values = [line for line in lines
                  if re.match(rf"{name}({{.*}})? ", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in values)


class Load:
    """Clients that ask one question after the other, half of them for streams.
    Nobody tries again: what goes wrong is told to them."""

    def __init__(self, client, model, num_clients):
        self._client = client
        self._model = model
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        self.num_answers = 0
        self.errors = []  # (when its request began, the error)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number, turn):
        options = {
            "model": self._model, "temperature": 0, "max_tokens": 24,
            "messages": [{"role": "user", "content":
                          f"I am {number}, and tell me story {turn}."}]}
        if number % 2 == 0:
            answer = self._client.chat.completions.create(**options)
            return answer.choices[0].finish_reason
        reason = None
        for chunk in self._client.chat.completions.create(**options,
                                                          stream=True):
            if chunk.choices and chunk.choices[0].finish_reason:
                reason = chunk.choices[0].finish_reason
        return reason

    def _run(self, number):
        turn = 0
        while not self._has_ended.is_set():
            turn += 1
            began = time.monotonic()
            try:
                reason = self._ask(number, turn)
                error = (None if reason in ("stop", "length") else
                         AssertionError(f"an end of reason {reason}"))
            # Whatever it is, the test looks at it.
            except Exception as caught:  # pylint: disable=broad-except
                error = caught
            with self._lock:
                if error is None:
                    self.num_answers += 1
                else:
                    self.errors.append((began, error))
            if error is not None:
                self._has_ended.wait(0.1)  # no busy loop while nobody answers

    def wait_for_more(self, num_answers):
        goal = self.num_answers + num_answers
        wait_until(lambda: self.num_answers >= goal, "answers under load")

    def stop(self):
        """Returns whether every client has heard of its last question."""
        self._has_ended.set()
        deadline = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class LossTest(unittest.TestCase):
    """Two replicas, of which one is killed and started again."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.replicas = [Replica(folder.name, name) for name in ("a", "b")]
        for replica in self.replicas:
            self.addCleanup(replica.kill)
            replica.start()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = pathlib.Path(folder.name, "gateway.log")
        with self.log.open("w", encoding="utf-8") as log:
            gateway = subprocess.Popen(
                [pathlib.Path(PACKAGES).parent / "smg", "launch", "--host",
                 "127.0.0.1", "--port", str(port), "--prometheus-port",
                 str(free_port()), "--policy", "round_robin", "--worker-urls",
                 *(f"grpc://{replica.address}" for replica in self.replicas)],
                stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(gateway.wait)
        self.addCleanup(gateway.kill)
        self.wait_for_workers()
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none",
                                    timeout=PATIENCE_S, max_retries=0)
        self.model = self.client.models.list().data[0].id
        wait_until(self.answers, "the gateway has a tokenizer")

    def answers(self):
        try:
            self.client.chat.completions.create(
                model=self.model, messages=[QUESTION], max_tokens=1)
        except openai.InternalServerError:
            return False
        return True

    def num_healthy(self):
        try:
            workers = json.loads(fetch(self.url + "/workers"))["workers"]
        except OSError:
            return 0
        return sum(worker["is_healthy"] for worker in workers)

    def wait_for_workers(self):
        wait_until(lambda: self.num_healthy() == len(self.replicas),
                   "all workers are healthy")

    def test_requests_are_retried_or_told_and_none_hangs(self):
        lost, _ = self.replicas
        load = Load(self.client, self.model, num_clients=6)
        load.wait_for_more(6)
        self.assertEqual(load.errors, [])
        wait_until(lambda: lost.metric("blockmgr_requests_running") > 0,
                   "the replica runs a request")
        lost.kill()
        # The other one serves on.
        load.wait_for_more(12)
        lost.start()
        self.wait_for_workers()
        wait_until(
            lambda: lost.metric("blockmgr_requests_finished_total") > 0,
            "requests come to the replica again")
        recovered = time.monotonic()
        load.wait_for_more(12)
        self.assertTrue(load.stop(), "a request hangs")
        self.assertEqual([error for began, error in load.errors
                          if began >= recovered], [])
        # The dead replica took half of the requests for a moment only.
        self.assertLess(len(load.errors), load.num_answers / 4)
        for _, error in load.errors:
            # The gateway says so.
            self.assertIsInstance(error, openai.APIError)
            self.assertNotIsInstance(error, openai.APITimeoutError)
        print(f"{load.num_answers} answers and {len(load.errors)} errors:",
              {str(error) for _, error in load.errors}, file=sys.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
