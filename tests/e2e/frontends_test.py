#!/usr/bin/env python3
"""What clients that others wrote see of scripts/chat.sh: the openai client, by
the gateway smg, of daemons with a language model.

  frontends_test.py FOLDER_OF_PROGRAMS PACKAGES

Runs with the Python of scripts/fleet_packages.sh, which is PACKAGES.
"""
import os
import pathlib
import signal
import socket
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

# pylint: disable=wrong-import-position
import openai  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Fleet:
    """A run of scripts/chat.sh."""

    def __init__(self, *flags):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.script = subprocess.Popen(
            [ROOT / "scripts/chat.sh", "--no-setup", "--bin", PROGRAMS,
             "--port", self.url.rsplit(":", 1)[1], *flags],
            stdout=self.log, stderr=self.log, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while "Ready: " not in self.text():
            if self.script.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.text())
            time.sleep(0.2)
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none",
                                    timeout=PATIENCE_S)
        self.model = self.client.models.list().data[0].id

    def text(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def chat(self, messages, **options):
        options = {"temperature": 0, "max_tokens": 40, **options}
        return self.client.chat.completions.create(
            model=self.model, messages=messages, **options)

    def stop(self):
        os.kill(self.script.pid, signal.SIGTERM)
        self.script.wait()
        self.log.close()


class ClientTest(unittest.TestCase):
    """The openai client and one daemon."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet()
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

    def test_stop_strings(self):
        answer = self.fleet.chat([QUESTION], stop=["France"])
        self.assertNotIn("France", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

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
    """Three daemons behind the gateway."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet("--replicas", "3")
        cls.addClassCleanup(cls.fleet.stop)

    def test_turns_land_where_their_prefix_is(self):
        """All but the first turns find nearly all that came before."""
        found, asked = [], []

        def talk(number):
            messages = [{"role": "user", "content":
                         f"I am number {number}. " + "Count with me. " * 20}]
            for _ in range(3):
                answer = self.fleet.chat(messages, max_tokens=12)
                if len(messages) > 1:
                    details = answer.usage.prompt_tokens_details
                    found.append(details.cached_tokens)
                    asked.append(answer.usage.prompt_tokens)
                messages += [
                    {"role": "assistant",
                     "content": answer.choices[0].message.content or "."},
                    {"role": "user", "content": "Go on."}]

        threads = [threading.Thread(target=talk, args=(number,))
                   for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(asked), 12)
        self.assertGreater(sum(found) / sum(asked), 0.6)
        print(f"{sum(found)} of {sum(asked)} prompt tokens were cached",
              file=sys.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
