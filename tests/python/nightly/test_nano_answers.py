"""nano_engine.py answers as blockmgr-engine does, on a real model.

Needs the programs (BLOCKMGR_BIN, default build/release/bin), and the model that
scripts/fetch_model.sh fetches.
"""
import asyncio
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

import blockmgr
import nano_engine
from blockmgr.client import Client, eviction_message
from blockmgr.v1 import common_pb2
from conftest import ROOT

NOT_REACHED = 69  # scripts/fetch_model.sh
# The engines round differently. A token may differ where the reference's two
# likeliest tokens are closer than this; the answers are compared up to there.
MARGIN = 1e-2
MAX_TOKENS = 24
POLICY, RATIO = "keydiff | adakv | topk", 0.2


@dataclasses.dataclass
class Answer:
    tokens: list
    margins: list


@pytest.fixture(name="path", scope="session")
def model_path():
    done = subprocess.run([ROOT / "scripts/fetch_model.sh"], text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode == NOT_REACHED:
        pytest.skip("the package index cannot be reached for the model")
    done.check_returncode()
    return done.stdout.strip()


@pytest.fixture(name="model", scope="session")
def loaded_model(path):
    return nano_engine.Llama(path)


@pytest.fixture(name="prompts", scope="session")
def all_prompts(model):
    """Short questions, and questions about texts of some hundred tokens."""
    chat = nano_engine.Chat(model)
    questions = ["What is the capital of France?", "What do bees make?",
                 "Name three primary colors."]
    rng = random.Random(7)
    people = ["Maria", "Thomas", "Anna", "Peter", "Laura", "Paul"]
    cities = ["Oslo", "Lisbon", "Toronto", "Madrid", "Vienna", "Dublin"]
    jobs = ["baker", "teacher", "nurse", "farmer", "painter", "judge"]
    for _ in range(3):
        rng.shuffle(cities)
        facts = [f"{name} lives in {city}, works as a {rng.choice(jobs)}, has "
                 f"{rng.randrange(2, 9)} brothers, and is {rng.randrange(20, 90)} "
                 "years old." for name, city in zip(people, cities)] * 3
        rng.shuffle(facts)
        questions.append(f"{' '.join(facts)}\n\nIn which city does "
                         f"{rng.choice(people)} live?")
    return [chat.encode(question) for question in questions]


class Line:
    """The daemon and the C++ engine."""

    def __init__(self, folder, path):
        programs = pathlib.Path(os.environ.get("BLOCKMGR_BIN",
                                               ROOT / "build/release/bin"))
        self.loop = asyncio.new_event_loop()  # grpcio keeps its first one
        self.address = f"unix:{folder}/blockmgr.sock"
        self.processes = [
            subprocess.Popen([programs / name, *flags])
            for name, flags in (
                ("blockmgrd", ["--listen", self.address, "--log-level", "warn"]),
                ("blockmgr-engine", [
                    "--mode", "llama", "--model", path, "--dtype", "float32",
                    "--num-blocks", "512", "--address", self.address]))]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def answers(self, prompts, **fields):
        return self.loop.run_until_complete(self._answers(prompts, fields))

    async def _wait_for_engine(self):
        while True:
            assert all(process.poll() is None for process in self.processes)
            try:
                async with Client(self.address) as client:
                    if (await client.stats()).engine_attached:
                        return
            except blockmgr.UnavailableError:
                pass  # the daemon does not listen yet
            await asyncio.sleep(0.1)

    async def _answers(self, prompts, fields):
        await self._wait_for_engine()
        async with Client(self.address) as client:
            requests = [await client.submit(
                prompt, MAX_TOKENS, sampling=common_pb2.SamplingParams(
                    temperature=0, logprobs=2), **fields) for prompt in prompts]
            return [await self._answer(request) for request in requests]

    @staticmethod
    async def _answer(request):
        answer = Answer([], [])
        async for chunk in request:
            answer.tokens += chunk.tokens
            for rows in chunk.logprobs:
                assert rows.num_top == 2
                answer.margins += [a - b for a, b in zip(rows.logprobs[1::3],
                                                         rows.logprobs[2::3])]
        assert len(answer.margins) == len(answer.tokens) > 0
        return answer


@pytest.fixture(name="line", scope="session")
def running_line(tmp_path_factory, path):
    line = Line(tmp_path_factory.mktemp("line"), path)
    yield line
    line.stop()


@pytest.fixture(name="full", scope="session")
def full_answers(line, prompts):
    """What the C++ engine answers with the full cache."""
    return line.answers(prompts)


def answers_of(model, prompts, eviction=None, **options):
    """Of this engine: answers, the evictions' effects, and (effect, used blocks
    before and after) of every eviction."""
    layout = nano_engine.layout_for(model, 512)
    scheduler = nano_engine.scheduler_for(model, layout, **options)
    engine = nano_engine.Engine(model, layout)
    requests = [scheduler.submit(f"{i}", prompt, MAX_TOKENS, eviction=eviction)
                for i, prompt in enumerate(prompts)]
    answers, freed = {request: [] for request in requests}, []
    while (plan := scheduler.schedule()) is not None:
        result = engine.run(plan)
        before = scheduler.num_used_blocks
        effects = scheduler.update(result)
        for request, token in zip(effects.token_requests.tolist(),
                                  effects.tokens.tolist()):
            answers[request].append(token)
        if effects.evictions:
            freed.append((effects.evictions, before, scheduler.num_used_blocks))
        assert all(end.error is None for end in effects.finished)
    return list(answers.values()), freed


def compare(answers, reference):
    """Returns how many of the tokens were compared."""
    num_compared = 0
    for own, other in zip(answers, reference):
        for i, (token, margin) in enumerate(zip(other.tokens, other.margins)):
            if own[i] != token:
                assert margin < MARGIN, (i, own, other)
                break
            num_compared += 1
        else:
            assert len(own) == len(other.tokens)
    return num_compared / sum(len(other.tokens) for other in reference)


def test_full_answers_are_those_of_the_reference_in_float64(model):
    golden = json.loads((ROOT / "tests/engine/reference/model_answers.json"
                         ).read_text(encoding="utf-8"))["answers"]
    chat = nano_engine.Chat(model)
    reference = [Answer(one["answer"], one["margins"]) for one in golden]
    answers, _ = answers_of(model, [one["prompt"] for one in golden])
    assert compare(answers, reference) > 0.8
    for one in golden:
        assert chat.encode(one["question"]) == one["prompt"]
        assert chat.decode(one["answer"]) == one["text"].replace("<|im_end|>", "")


@pytest.mark.parametrize("options", [
    {}, dict(max_num_batched_tokens=100, max_num_seqs=6), dict(max_num_seqs=1)])
def test_full_answers_are_those_of_the_other_engine(model, prompts, full,
                                                    options):
    answers, _ = answers_of(model, prompts, **options)
    assert compare(answers, full) > 0.8


def test_answers_after_eviction_are_those_of_the_other_engine(model, prompts,
                                                              line, full):
    reference = line.answers(prompts, eviction=eviction_message(POLICY, RATIO))
    assert reference != full
    answers, freed = answers_of(model, prompts,
                                blockmgr.Eviction(POLICY, RATIO))
    assert compare(answers, reference) > 0.8
    assert sum(len(effects) for effects, _, _ in freed) == len(prompts)
    for effects, before, after in freed:
        freed = sum(effect.freed_blocks for effect in effects)
        assert before - after >= freed > 0


def test_the_command_answers_and_says_what_was_freed(path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/python/nano_engine.py", "--model", path,
         "--prompt", "What is the capital of France?", "--prompt",
         "What is the capital of Japan?", "--keep-ratio", "0.5", "--max-tokens",
         "12"], text=True, stdout=subprocess.PIPE, check=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.stdout.count("bytes free again") == 2
    assert "2 evictions freed" in done.stdout
    assert "What is the capital of France?" in done.stdout
