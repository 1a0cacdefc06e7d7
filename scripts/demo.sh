#!/usr/bin/env bash
# The main job, end to end, once without eviction and once keeping 20 %: a
# simulated engine replays one workload on the same pool, or a language model
# answers questions about a text.
set -euo pipefail

usage() {
  cat <<'TXT'
usage: scripts/demo.sh [--model] [--no-setup] [--results DIR]

Builds blockmgr, then for each of two runs starts blockmgrd and a simulated
engine (Llama-3.1-8B on an H100, its step times modelled), replays the workload
with blockmgr-bench serve, and prints both runs side by side.

With --model the engine is a language model of 135 M parameters that computes on
the CPU. It answers three questions about texts of some 600 tokens, and the
answers of both runs are printed side by side, with what was freed.

The exit status is 3 if requests failed; the results say which.

  --model         fetch the model (97 MB, scripts/fetch_model.sh) and ask it
  --no-setup      do not look for missing system packages
  --results DIR   keep the JSON results and logs there (default: results/demo)

Environment of both:
  KEEP_RATIO=R       fraction kept (default: 0.2)
  EVICTION=SPEC      policy (default: keydiff | adakv | topk)

Environment with --model:
  BLOCKMGR_MODEL=FILE  the GGUF file to ask, instead of fetching one

Environment without --model:
  TRACE=FILE         a Mooncake .jsonl or Azure .csv trace instead of the
                     built-in generator
  NUM_PROMPTS=N      requests (default: 96; of a trace: its first 200)
  NUM_BLOCKS=N       blocks of 16 tokens in the pool (default: 4096; with a
                     trace: 22528)
  REQUEST_RATE=R     requests per second (default: inf)
TXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
setup=1
with_model=0
results=$root/results/demo
while [ $# -gt 0 ]; do
  case $1 in
    --model) with_model=1 ;;
    --no-setup) setup=0 ;;
    --results)
      [ $# -ge 2 ] || { echo "demo.sh: --results needs a folder" >&2; exit 2; }
      results=$(realpath -m -- "$2"); shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "demo.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

trace=${TRACE:-}
if [ -n "$trace" ]; then
  [ -f "$trace" ] || { echo "demo.sh: TRACE: no such file: $trace" >&2; exit 2; }
  trace=$(cd "$(dirname "$trace")" && pwd)/$(basename "$trace")
  case $trace in
    *.jsonl) dataset=mooncake ;;
    *.csv) dataset=azure ;;
    *) echo "demo.sh: TRACE: expected a .jsonl (Mooncake) or .csv (Azure) file, got $trace" >&2; exit 2 ;;
  esac
fi
num_blocks=${NUM_BLOCKS:-$([ -n "$trace" ] && echo 22528 || echo 4096)}
num_prompts=${NUM_PROMPTS:-$([ -n "$trace" ] && echo 200 || echo 96)}
keep_ratio=${KEEP_RATIO:-0.2}
eviction=${EVICTION:-keydiff | adakv | topk}
rate=${REQUEST_RATE:-inf}

cd "$root"
[ "$setup" = 0 ] || scripts/setup.sh
preset=${DEMO_PRESET:-dev}
echo "== building (preset $preset)"
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target blockmgrd blockmgr-engine blockmgr-bench
bin=$root/build/$preset/bin

mkdir -p "$results"
results=$(cd "$results" && pwd)
work=$(mktemp -d)
address=unix:$work/blockmgr.sock
daemon=
engine=
stop() {
  [ -z "$engine" ] || { kill "$engine" 2>/dev/null || true; wait "$engine" 2>/dev/null || true; }
  [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
  engine=
  daemon=
}
trap 'stop; rm -rf "$work"' EXIT

# replay LABEL [client flags..]
replay() {
  local label=$1
  shift
  echo
  echo "== $label: $num_prompts requests, $num_blocks blocks"
  "$bin/blockmgrd" --listen "$address" --max-num-batched-tokens 8192 \
    --max-num-seqs 1024 2>"$results/$label.daemon.log" &
  daemon=$!
  "$bin/blockmgr-engine" --mode sim --address "$address" \
    --num-blocks "$num_blocks" 2>"$results/$label.engine.log" &
  engine=$!
  local data=(--dataset-name random --random-input-len 4096 --random-output-len 256
              --random-range-ratio 0.5)
  [ -z "$trace" ] || data=(--dataset-name "$dataset" --dataset-path "$trace")
  local status=0
  "$bin/blockmgr-bench" serve --address "$address" "${data[@]}" \
    --num-prompts "$num_prompts" --request-rate "$rate" \
    --save-result --result-dir "$results" --result-filename "$label.json" \
    --label "$label" "$@" >"$results/$label.txt" || status=$?
  stop
  # 3: requests failed. The report is there, and the comparison says so again.
  [ "$status" = 0 ] || [ "$status" = 3 ] || exit "$status"
}

# Writes three questions about a text to $work: paragraphs of the documentation
# with one fact among them, in the chat format of SmolLM2. The answers are begun,
# as the model is small.
write_questions() {
  python3 - "$work" docs/scheduling.md docs/eviction.md docs/operations.md <<'PY'
import pathlib
import re
import sys

FACTS = [("Maria", "Oslo", "baker"), ("Thomas", "Lisbon", "teacher"),
         ("Anna", "Toronto", "nurse")]
LENGTH = 2000  # characters, some 500 tokens
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
work = pathlib.Path(sys.argv[1])
for i, (path, (name, city, job)) in enumerate(zip(sys.argv[2:], FACTS)):
    text = pathlib.Path(path).read_text(encoding="utf-8").replace("`", "")
    paragraphs = re.split(r"\n\s*\n|\n(?=\* )", text)
    # Plain sentences: no headings, tables or code.
    paragraphs = [" ".join(p.removeprefix("* ").split())
                  for p in paragraphs if not p.startswith(" ")]
    paragraphs = [p for p in paragraphs if p and p[0].isalpha()]
    filler = []
    while sum(map(len, filler)) < LENGTH and paragraphs:
        filler.append(paragraphs.pop(0))
    filler.insert((i + 1) * len(filler) // 4,
                  f"{name} lives in {city} and works as a {job}.")
    question = f"In which city does {name} live?"
    (work / f"question{i}").write_text(
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        "Read the text and answer the question after it.\n\n"
        + "\n\n".join(filler)
        + f"\n\n{question}<|im_end|>\n<|im_start|>assistant\n{name} lives in",
        encoding="utf-8")
    (work / f"short{i}").write_text(f"{question}\n{name} lives in", encoding="utf-8")
PY
}

# ask LABEL [client flags..]
ask() {
  local label=$1
  shift
  echo "== $label: asking"
  "$bin/blockmgrd" --listen "$address" 2>"$results/$label.daemon.log" &
  daemon=$!
  "$bin/blockmgr-engine" --mode llama --model "$model" --threads "$(nproc)" \
    --address "$address" 2>"$results/$label.engine.log" &
  engine=$!
  "$bin/blockmgr-bench" generate --address "$address" --model "$model" \
    --prompt-file "$work/question0" --prompt-file "$work/question1" \
    --prompt-file "$work/question2" --max-tokens 12 --raw \
    --json "$@" >"$results/$label.json"
  stop
}

print_answers() {
  python3 - "$work" "$results/model-full.json" "$results/model-evicted.json" <<'PY'
import json
import pathlib
import sys

work = pathlib.Path(sys.argv[1])
full, evicted = (json.loads(pathlib.Path(p).read_text()) for p in sys.argv[2:])
for i, (a, b) in enumerate(zip(full["answers"], evicted["answers"])):
    question, begin = (work / f"short{i}").read_text().split("\n")
    print()
    print(question, f"({a['prompt_tokens']} tokens of text)")
    print("  full cache:", begin, a["text"].strip())
    print("  evicted:   ", begin, b["text"].strip())
freed = evicted["evicted"]
print()
print(f"Evicted {freed['entries']} entries of K and V: {freed['blocks']} blocks, "
      f"{freed['bytes'] / 1e6:.1f} MB, went back to the pool.")
PY
}

if [ "$with_model" = 1 ]; then
  model=$(scripts/fetch_model.sh)
  write_questions
  ask model-full
  ask model-evicted --eviction "$eviction" --keep-ratio "$keep_ratio"
  print_answers
  echo
  echo "answers and logs: $results"
  exit 0
fi

replay full
replay evicted --eviction "$eviction" --keep-ratio "$keep_ratio"
echo
status=0
"$bin/blockmgr-bench" compare "$results/full.json" "$results/evicted.json" ||
  status=$?
echo
echo "results and logs: $results"
exit "$status"
