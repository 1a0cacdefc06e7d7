#!/usr/bin/env bash
# The main job, end to end: daemon, simulated engine and load client replay one
# workload twice on the same pool, without eviction and keeping 20 %.
set -euo pipefail

usage() {
  cat <<'TXT'
usage: scripts/demo.sh [--no-setup] [--results DIR]

Builds blockmgr, then for each of two runs starts blockmgrd and a simulated
engine (Llama-3.1-8B on an H100, its step times modelled), replays the workload
with blockmgr-bench serve, and prints both runs side by side.

The exit status is 3 if requests failed; the results say which.

  --no-setup      do not look for missing system packages
  --results DIR   keep the JSON results and logs there (default: results/demo)

Environment:
  TRACE=FILE         a Mooncake .jsonl or Azure .csv trace instead of the
                     built-in generator
  NUM_PROMPTS=N      requests (default: 96; of a trace: its first 200)
  NUM_BLOCKS=N       blocks of 16 tokens in the pool (default: 4096; with a
                     trace: 22528)
  KEEP_RATIO=R       fraction kept (default: 0.2)
  EVICTION=SPEC      policy (default: keydiff | adakv | topk)
  REQUEST_RATE=R     requests per second (default: inf)
TXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
setup=1
results=$root/results/demo
while [ $# -gt 0 ]; do
  case $1 in
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

replay full
replay evicted --eviction "$eviction" --keep-ratio "$keep_ratio"
echo
status=0
"$bin/blockmgr-bench" compare "$results/full.json" "$results/evicted.json" ||
  status=$?
echo
echo "results and logs: $results"
exit "$status"
