#!/usr/bin/env python3
"""Compares fleets of daemons behind a gateway with one daemon: the same
conversations with a language model, greedy, in three runs.

  one           one daemon with the whole pool
  cache_aware   replicas that share the pool; a request goes where its prefix is
  round_robin   the same replicas; requests go to each in turn

Each run is scripts/chat.sh. Several clients hold conversations at the same time,
and every client has several open and asks a question in each in turn. The first
message tells facts, and later ones ask for them. Most conversations share their
system prompt with others. Seeds decide what is said.

Exit status: 0 if every answer is that of the run `one`, no request failed, and
the hit rate of `cache_aware` is at least 0.9x of that of `one`; 1 if not; 69 if
packages or the model cannot be fetched."""
import argparse
import json
import os
import pathlib
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE_S = 600
MIN_HIT_RATIO = 0.9
# Counters of the daemons that the report has, as sums over label values.
METRICS = ("requests_finished", "prompt_tokens", "cached_tokens",
           "computed_tokens", "recomputed_tokens", "preemptions", "evictions",
           "evictions_refused", "reclaimed_blocks")

NAMES = ("Anna", "Boris", "Carla", "David", "Elena", "Felix", "Greta", "Hugo",
         "Irene", "Jonas", "Karin", "Lucas", "Maria", "Nils", "Olga", "Peter")
CITIES = ("Lisbon", "Oslo", "Boston", "Vienna", "Dublin", "Kyoto", "Seville",
          "Toronto", "Geneva", "Naples", "Riga", "Sydney")
JOBS = ("baker", "nurse", "pilot", "teacher", "farmer", "dentist", "painter",
        "lawyer", "plumber", "chemist")
ANIMALS = ("dog", "cat", "horse", "rabbit", "parrot", "goat")
PETS = ("Biscuit", "Pepper", "Shadow", "Ginger", "Rocky", "Daisy", "Coco",
        "Bella", "Smokey", "Lucky")
COUNTRIES = ("France", "Italy", "Japan", "Spain", "Russia", "Egypt")
SHOPS = ("bakery", "bookshop", "garage", "pharmacy", "flower shop", "cinema")
NUM_SYSTEM_PROMPTS = 8
# Of ten conversations, so many have a system prompt that others have, too.
SHARED_OF_TEN = 8

# A proxy of the machine is not for the loopback.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url):
    with DIRECT.open(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Fleet:
    """A run of scripts/chat.sh with the programs of a folder."""

    def __init__(self, programs, *flags):
        import openai  # pylint: disable=import-outside-toplevel
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.script = subprocess.Popen(
            [ROOT / "scripts/chat.sh", "--no-setup", "--bin", programs,
             "--port", self.url.rsplit(":", 1)[1], *flags],
            stdout=self.log, stderr=self.log, start_new_session=True)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while "Ready: " not in self.text():
                if (self.script.poll() is not None or
                        time.monotonic() > deadline):
                    raise AssertionError(self.text())
                time.sleep(0.2)
            self.client = openai.OpenAI(base_url=self.url + "/v1",
                                        api_key="none", timeout=PATIENCE_S)
            self.model = self.client.models.list().data[0].id
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def text(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def chat(self, messages, **options):
        options = {"temperature": 0, "max_tokens": 40, **options}
        return self.client.chat.completions.create(
            model=self.model, messages=messages, **options)

    def metrics(self):
        """For each daemon, its METRICS."""
        daemons = []
        for address in re.findall(r"metrics at (\S+)", self.text()):
            text = fetch(f"http://{address}/metrics")
            daemons.append({metric: sum(
                int(float(value)) for value in re.findall(
                    rf"^blockmgr_{metric}_total(?:{{.*}})? (\S+)$", text, re.M))
                            for metric in METRICS})
        return daemons

    def stop(self):
        if self.script.poll() is None:
            os.kill(self.script.pid, signal.SIGTERM)
        self.script.wait()
        self.log.close()


def make_system_prompt(seed, number):
    rng = random.Random(f"system prompt {seed} {number}")
    shop = rng.choice(SHOPS)
    return (f"You are the assistant of {rng.choice(NAMES)}'s {shop} in "
            f"{rng.choice(CITIES)}. The {shop} opens at {rng.randint(6, 10)} in "
            f"the morning and closes at {rng.randint(4, 9)} in the evening. It "
            f"is closed on {rng.choice(('Sunday', 'Monday', 'Friday'))}. Be "
            "polite, and answer every question in one short sentence.")


def make_conversation(seed, number, num_turns):
    """Returns the system prompt, or None, and what the user says in each turn."""
    rng = random.Random(f"conversation {seed} {number}")
    system = None
    if number % 10 < SHARED_OF_TEN:
        system = make_system_prompt(seed, rng.randrange(NUM_SYSTEM_PROMPTS))
    name, city, job, pet, animal, country = (
        rng.choice(words)
        for words in (NAMES, CITIES, JOBS, PETS, ANIMALS, COUNTRIES))
    asked = ["What is my name?", "Which city do I live in?", "What is my job?",
             f"What is the name of my {animal}?"]
    rng.shuffle(asked)
    first = (f"My name is {name}. I live in {city}, and I work as a {job}. I "
             f"have a {animal}, and the name of my {animal} is {pet}. What is "
             f"the capital of {country}?")
    return system, [first] + [asked[turn % len(asked)]
                              for turn in range(num_turns - 1)]


def ask(fleet, messages, max_tokens):
    """Returns the answer to a streamed request, and what is known of it."""
    began = time.monotonic()
    first, text, usage = None, "", None
    for chunk in fleet.chat(messages, max_tokens=max_tokens, stream=True,
                            stream_options={"include_usage": True}):
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.monotonic()
            text += chunk.choices[0].delta.content
        usage = chunk.usage or usage
    details = usage.prompt_tokens_details
    return {"answer": text, "ttft_s": (first or time.monotonic()) - began,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": details.cached_tokens if details else 0,
            "output_tokens": usage.completion_tokens}


def hold_conversations(fleet, conversations, options, has_answered):
    """Holds some conversations, a turn of each at a time, and returns their
    requests."""
    requests = []
    talks = []
    for number, (system, turns) in conversations:
        messages = [{"role": "system", "content": system}] if system else []
        talks.append((number, turns, messages))
    for turn in range(options.turns):
        for number, turns, messages in talks:
            messages.append({"role": "user", "content": turns[turn]})
            request = ask(fleet, messages, options.max_tokens)
            messages.append({"role": "assistant",
                             "content": request["answer"] or "."})
            requests.append({"conversation": number, "turn": turn + 1,
                             **request})
            has_answered()
    return requests


def run_clients(fleet, options, name):
    """Returns all requests, and the error of each client that had one."""
    import tqdm  # pylint: disable=import-outside-toplevel
    conversations = [(number, make_conversation(options.seed, number,
                                                options.turns))
                     for number in range(options.conversations)]
    groups = [conversations[begin:begin + options.open]
              for begin in range(0, len(conversations), options.open)]
    lock = threading.Lock()
    requests, errors = [], []
    progress = tqdm.tqdm(total=options.conversations * options.turns, desc=name,
                         unit="req", disable=None)

    def has_answered():
        with lock:
            progress.update()

    def run():
        while True:
            with lock:
                if not groups or errors:
                    return
                group = groups.pop(0)
            try:
                more = hold_conversations(fleet, group, options, has_answered)
            # Whatever it is, the report has it.
            except Exception as error:  # pylint: disable=broad-except
                with lock:
                    errors.append(repr(error))
                return
            with lock:
                requests.extend(more)

    threads = [threading.Thread(target=run) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    requests.sort(key=lambda one: (one["conversation"], one["turn"]))
    return requests, errors


def run_fleet(options, name, replicas, flags):
    num_blocks = options.num_blocks // replicas
    with Fleet(options.bin, "--replicas", str(replicas), "--num-blocks",
               str(num_blocks), "--keep-ratio", str(options.keep_ratio),
               *flags) as fleet:
        before = fleet.metrics()
        began = time.monotonic()
        requests, errors = run_clients(fleet, options, name)
        wall_s = time.monotonic() - began
        daemons = [{metric: after[metric] - was[metric] for metric in METRICS}
                   for was, after in zip(before, fleet.metrics())]
    total = {key: sum(one[key] for one in requests)
             for key in ("prompt_tokens", "cached_tokens", "output_tokens")}
    ttfts = sorted(1000 * one["ttft_s"] for one in requests) or [0]
    return {
        "name": name, "replicas": replicas, "blocks_of_each": num_blocks,
        "requests": len(requests), "errors": errors, "wall_s": wall_s, **total,
        "hit_rate": total["cached_tokens"] / max(1, total["prompt_tokens"]),
        "requests_per_s": len(requests) / wall_s,
        "output_tokens_per_s": total["output_tokens"] / wall_s,
        "ttft_ms": {"mean": statistics.fmean(ttfts),
                    "p50": ttfts[len(ttfts) // 2],
                    "p90": ttfts[len(ttfts) * 9 // 10],
                    "p99": ttfts[len(ttfts) * 99 // 100]},
        "daemons": daemons, "answers": requests}


def find_differences(run, reference):
    """The first other answer in each conversation."""
    found = {}
    for one, other in zip(reference["answers"], run["answers"]):
        if one["answer"] != other["answer"]:
            found.setdefault(one["conversation"], {
                "conversation": one["conversation"], "turn": one["turn"],
                "expected": one["answer"], "got": other["answer"]})
    return list(found.values())


def write(options, report):
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1),
                                              encoding="utf-8")


def compare(options, routings=("cache_aware", "round_robin")):
    """Returns the report; `is_good` in it says whether all is as it must be."""
    version = subprocess.run([pathlib.Path(options.bin, "blockmgrd"),
                              "--version"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.splitlines()[0]
    runs = []
    report = {"program": version, "machine": platform.machine(),
              "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d"),
              "options": vars(options), "is_good": True, "runs": runs}
    for routing in ("one", *routings):
        if routing == "one":
            run = run_fleet(options, routing, 1, [])
        else:
            run = run_fleet(options, routing, options.replicas,
                            ["--routing", routing])
        runs.append(run)
        run["differences"] = find_differences(run, runs[0])
        run["hit_ratio"] = run["hit_rate"] / max(1e-9, runs[0]["hit_rate"])
        report["is_good"] &= (
            not run["errors"] and not run["differences"] and
            run["requests"] == options.conversations * options.turns and
            (routing != "cache_aware" or run["hit_ratio"] >= MIN_HIT_RATIO))
        write(options, report)  # what there is, if a later run is interrupted
    return report


def describe(report):
    """Lines of text about a report."""
    rows = [("", "replicas", "hit rate", "of one", "TTFT p50", "p90", "p99",
             "output tok/s", "wall s", "answers", "differ", "errors")]
    for run in report["runs"]:
        ttft = run["ttft_ms"]
        rows.append((
            run["name"], f"{run['replicas']} x {run['blocks_of_each']}",
            f"{100 * run['hit_rate']:.1f} %", f"{run['hit_ratio']:.3f}x",
            f"{ttft['p50']:.0f} ms", f"{ttft['p90']:.0f}", f"{ttft['p99']:.0f}",
            f"{run['output_tokens_per_s']:.1f}", f"{run['wall_s']:.0f}",
            str(run["requests"]), str(len(run["differences"])),
            str(len(run["errors"]))))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths))
             for row in rows]
    for run in report["runs"]:
        for metric in ("requests_finished", "preemptions", "reclaimed_blocks",
                       "evictions", "evictions_refused"):
            lines.append(f"{run['name']}: {metric} of each daemon: " + ", ".join(
                str(daemon[metric]) for daemon in run["daemons"]))
    return [report["program"], *(line.rstrip() for line in lines)]


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)

    def add(flag, default, text, parse=int):
        parser.add_argument(flag, type=parse, default=default,
                            help=f"{text} (default: %(default)s)")

    add("--bin", str(ROOT / "build/dev/bin"), "folder of the programs",
        os.path.abspath)
    add("--conversations", 200, "conversations of each run")
    add("--turns", 5, "questions of a conversation")
    add("--replicas", 3, "daemons of a fleet")
    add("--keep-ratio", 0.2, "fraction of a prompt that is kept", float)
    add("--num-blocks", 1536, "blocks of all pools of a run together")
    add("--clients", 24, "requests at the same time")
    add("--open", 2, "conversations that a client holds in turn")
    add("--max-tokens", 12, "of an answer")
    add("--seed", 1, "decides what is said")
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    return parser.parse_args(arguments)


def main():
    options = parse_options()
    packages = subprocess.run([ROOT / "scripts/fleet_packages.sh", "smg",
                               "openai", "tqdm"], stdout=subprocess.PIPE, text=True,
                              check=False)
    if packages.returncode != 0:
        sys.exit(packages.returncode)
    python = packages.stdout.strip()
    if os.path.realpath(sys.prefix) != os.path.realpath(
            pathlib.Path(python).parents[1]):
        os.execv(python, [python, *sys.argv])
    report = compare(options)
    print(*describe(report), sep="\n")
    sys.exit(0 if report["is_good"] else 1)


if __name__ == "__main__":
    main()
