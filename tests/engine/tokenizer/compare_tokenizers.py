#!/usr/bin/env python3
"""Compares the tokens of engine/tokenizer with those of the package `tokenizers`.

Both encode about ten megabytes of text: documentation and source code of this
machine, characters of many scripts, emoji, combining marks, white space and
numbers. The vocabulary is that of a real model (scripts/fetch_model.sh). smollm
is the model's own way to split text into words; the others are the expressions
that their models have published, with the same vocabulary. Ends of words are
compared too, because this vocabulary has no tokens of several digits.

The package is fetched from the Python package index, in a fixed version. Exits
with 77, and says so, if the index cannot be reached; with 1 if tokens differ."""

import argparse
import array
import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig
import time
import unicodedata
import zipfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # speeds are those of a thread

ROOT = pathlib.Path(__file__).resolve().parents[3]
SKIPPED = 77
MODEL_NOT_REACHED = 69  # scripts/fetch_model.sh

VERSION = "0.23.3"
REQUIREMENT = f"""tokenizers=={VERSION} \
--hash=sha256:376851d22bcf9d650a5c3090bb83e6cf9e895fbf0595369fa4cd43c1f69b5f87 \
--hash=sha256:ec82e80e65a862275b97c3d90b7a523df8d9519ee48aeb4e9625b2cc909274e0
"""  # wheels for x86-64 and arm64

GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
        r"|\s+(?!\S)|\s+")
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA.replace("{1,3}", "")
NAMES = ["smollm", "gpt-2", "llama-bpe", "qwen2"]

# Blocks of which the random texts are made, none of them new.
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F),
          (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF),
          (0x1E00, 0x1FFF), (0x2000, 0x27FF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFE0F),
          (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F64F)]
BETWEEN = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "\x85", "\xA0",
           "\u3000", "\u180E", "\u200D", "\u0301", "\x00", "0", "123",
           "4567890", "'s", "'S", "'\u017F", "'LL", "n't", "'re",
           "<|im_start|>", "<|im_end|>", "<|im_", "<file_sep>", "<filename>x"]


def skip(message):
    print(f"SKIPPED, nothing was compared: {message}")
    sys.exit(SKIPPED)


def fetch_package(folder):
    """Makes `tokenizers` of the fixed version importable."""
    sys.path.insert(0, str(folder))
    if not (folder / f"tokenizers-{VERSION}.dist-info").exists():
        folder.mkdir(parents=True, exist_ok=True)
        requirements = folder / "requirements.txt"
        requirements.write_text(REQUIREMENT)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--no-deps", "--retries",
             "2", "--only-binary=:all:", "--require-hashes", "--target", folder,
             "--upgrade", "--requirement", requirements],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        if done.returncode != 0:
            print(done.stdout)
            if ("connection broken" in done.stdout
                    and "from versions: none" in done.stdout):
                skip("the package index cannot be reached for tokenizers")
            sys.exit("compare_tokenizers.py: pip could not install tokenizers")


def fetch_model():
    done = subprocess.run([ROOT / "scripts" / "fetch_model.sh"],
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == MODEL_NOT_REACHED:
        skip("the package index cannot be reached for the model")
    if done.returncode != 0:
        sys.exit("compare_tokenizers.py: there is no model")
    return done.stdout.strip()


def read_metadata(path):
    """The keys of a GGUF file, little endian."""
    scalars = dict(enumerate("BbHhIif?"))
    scalars.update({10: "Q", 11: "q", 12: "d"})
    with open(path, "rb") as file:
        def number(code):
            return struct.unpack("<" + code,
                                 file.read(struct.calcsize("<" + code)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                element, count = number("I"), number("Q")
                return [value(element) for _ in range(count)]
            return number(scalars[kind])

        assert file.read(4) == b"GGUF"
        number("I")
        number("Q")
        pairs = {}
        for _ in range(number("Q")):
            key = value(8)
            pairs[key] = value(number("I"))
        return pairs


def make_tokenizer(metadata, name, special):
    import tokenizers
    from tokenizers import pre_tokenizers
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" "))
              for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges,
        ignore_merges=name == "llama-bpe"))
    if name == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True),
                 pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        expression = {"gpt-2": GPT2, "llama-bpe": LLAMA, "qwen2": QWEN2}[name]
        steps = [pre_tokenizers.Split(tokenizers.Regex(expression), "isolated"),
                 pre_tokenizers.ByteLevel(add_prefix_space=False,
                                          use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if special:
        types = metadata["tokenizer.ggml.token_type"]
        tokenizer.add_special_tokens([
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def files_below(folders, suffixes, num_characters, rng):
    """Texts of files in random order, of so many characters in all."""
    paths = sorted(os.path.join(folder, name)
                   for root in folders
                   for folder, _, names in os.walk(root)
                   for name in names if name.endswith(suffixes))
    rng.shuffle(paths)
    for path in paths:
        if num_characters <= 0:
            return
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                text = f.read(200_000).decode(errors="replace")
        except OSError:
            continue
        num_characters -= len(text)
        yield text


def random_text(num_characters, rng):
    pieces = []
    while num_characters > 0:
        first, last = rng.choice(BLOCKS)
        piece = "".join(chr(rng.randint(first, last))
                        for _ in range(rng.randint(1, 12)))
        # Not the characters that a newer Unicode may call letters.
        piece = "".join(c for c in piece if unicodedata.category(c) != "Cn")
        piece += rng.choice(BETWEEN + [" " * rng.randint(1, 40),
                                       "\n" * rng.randint(1, 9)])
        pieces.append(piece)
        num_characters -= len(piece)
    return "".join(pieces)


def make_texts(num_megabytes):
    rng = random.Random(1)
    million = num_megabytes * 100_000  # a tenth of the characters
    parts = list(files_below(["/usr/share/doc"],
                             (".gz", ".txt", ".html", "copyright"),
                             4 * million, rng))
    parts += files_below([ROOT / folder for folder in
                          ("blockmgr", "bench", "docs", "engine", "kernels",
                           "scheduler", "scripts", "tests")],
                         (".cc", ".h", ".py", ".md", ".sh"), 2 * million, rng)
    parts += files_below(["/usr/include", sysconfig.get_path("stdlib")],
                         (".h", ".py"), 2 * million, rng)
    # Every character that has been there for long.
    parts.append("".join(f"a{c}b {c}\n" for c in map(chr, range(0x110000))
                         if unicodedata.ucd_3_2_0.category(c)
                         not in ("Cn", "Co", "Cs")))
    parts.append("x" * 20_000 + " " * 20_000 + "ab" * 20_000 + "\n" * 20_000)
    missing = 10 * million - sum(map(len, parts))
    parts.append(random_text(max(missing, million), rng))
    size = 20_000
    return [part[i:i + size] for part in parts
            for i in range(0, len(part), size)]


def run_program(args, model, name, mode, texts):
    """The numbers of each text, and the seconds that they took."""
    source, out = args.work / "texts.bin", args.work / "numbers.bin"
    source.write_bytes(b"\xFF".join(text.encode() for text in texts))
    seconds = subprocess.run([args.encode, model, name, mode, source, out],
                             stdout=subprocess.PIPE, text=True,
                             check=True).stdout
    numbers = array.array("i", out.read_bytes())
    results = []
    at = 0
    while at < len(numbers):
        results.append(list(numbers[at + 1:at + 1 + numbers[at]]))
        at += 1 + numbers[at]
    return results, float(seconds)


def word_ends(tokenizer, text):
    ends, end = [], 0
    for _, (first, last) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        end += len(text[first:last].encode())
        ends.append(end)
    return ends


def compare(args, model, metadata, name, mode, texts):
    """Whether both give the same numbers. Prints what it compared."""
    tokenizer = make_tokenizer(metadata, name, mode == "special")
    begin = time.process_time()
    if mode == "words":
        expected = [word_ends(tokenizer, text) for text in texts]
    else:
        expected = [tokenizer.encode(text, add_special_tokens=False).ids
                    for text in texts]
    seconds = time.process_time() - begin
    got, our_seconds = run_program(args, model, name, mode, texts)
    assert len(got) == len(texts)
    num_different = sum(a != b for a, b in zip(expected, got))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{name:9} {mode:7} {len(texts)} texts, {megabytes:.1f} MB, "
          f"{sum(map(len, expected))} numbers, {num_different} texts differ; "
          f"{megabytes / our_seconds:.1f} MB/s, tokenizers "
          f"{megabytes / seconds:.2f} MB/s", flush=True)
    for text, a, b in zip(texts, expected, got):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y),
                  min(len(a), len(b)))
        print(f"  first at number {at}: expected {a[at:at + 8]}, "
              f"got {b[at:at + 8]}")
        if mode != "words":
            before = tokenizer.decode(a[:at], skip_special_tokens=False)
            print(f"  behind {before[-40:]!r} of {text[:40]!r}")
        break
    return num_different == 0


def compare_files(args, model, metadata, name, texts):
    """Whether the package reads our files as the tokenizer they describe."""
    import tokenizers
    out = args.work / "files.zip"
    subprocess.run([args.encode, model, name, "files", "-", out], check=True)
    with zipfile.ZipFile(out) as archive:
        ours = tokenizers.Tokenizer.from_str(
            archive.read("tokenizer.json").decode())
        template = json.loads(
            archive.read("tokenizer_config.json"))["chat_template"]
    theirs = make_tokenizer(metadata, name, True)
    num_different = sum(
        ours.encode(text, add_special_tokens=False).ids
        != theirs.encode(text, add_special_tokens=False).ids for text in texts)
    print(f"{name:9} files   {len(texts)} texts, {num_different} texts differ")
    return (num_different == 0
            and template == metadata["tokenizer.chat_template"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encode", required=True, help="tokenizer_encode")
    parser.add_argument("--work", required=True, type=pathlib.Path,
                        help="a folder for the package and for results")
    parser.add_argument("--megabytes", type=int, default=10,
                        help="about how much text (default: 10)")
    args = parser.parse_args()
    fetch_package(args.work / "python")
    model = fetch_model()
    metadata = read_metadata(model)
    texts = make_texts(args.megabytes)
    ok = compare(args, model, metadata, "smollm", "plain", texts)
    for name in NAMES:
        ok &= compare(args, model, metadata, name, "special", texts)
        ok &= compare(args, model, metadata, name, "words", texts)
        ok &= compare_files(args, model, metadata, name, texts[::20])
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
