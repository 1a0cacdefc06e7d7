#!/usr/bin/env bash
# The three programs as processes, in the order of somebody in a hurry: client,
# daemon, engine. They find each other without being told where.
# usage: programs_test.sh BLOCKMGRD BLOCKMGR_ENGINE BLOCKMGR_BENCH
set -euo pipefail
daemon_program=$1
engine_program=$2
bench_program=$3

work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
fail() {
  echo "programs_test.sh: $1" >&2
  tail -n 20 "$work"/*.log >&2
  exit 1
}
# usage: refuses PATTERN COMMAND..: the command fails, with such a line
refuses() {
  local expected=$1
  shift
  if "$@" >"$work/refused.log" 2>&1; then fail "expected an error of $*"; fi
  grep -q -e "$expected" "$work/refused.log" ||
    fail "expected '$expected' of $*"
}

"$bench_program" serve --num-prompts 8 --random-output-len 16 \
  >"$work/client.log" 2>&1 &
client=$!
"$daemon_program" >"$work/daemon.log" 2>&1 &
daemon=$!
"$engine_program" --mode sim --time-scale 0 --num-shards 2 >"$work/engine.log" 2>&1 &
engine=$!

wait "$client" || fail "the client failed"
grep -Eq 'Successful requests: +8$' "$work/client.log" ||
  fail "expected 8 successful requests"
# The same run again is the same run, unless it is to find what is cached.
"$bench_program" serve --num-prompts 8 --random-output-len 16 \
  >"$work/again.log" 2>&1 || fail "the client failed the second time"
grep -Eq 'Prefix cache at the start: +reset$' "$work/again.log" &&
  grep -Eq 'Prefix hit rate: +0$' "$work/again.log" ||
  fail "expected a second run without hits"
"$bench_program" serve --num-prompts 8 --random-output-len 16 \
  --keep-prefix-cache >"$work/kept.log" 2>&1 || fail "the third run failed"
grep -Eq 'Cached tokens: +[1-9]' "$work/kept.log" ||
  fail "expected hits with --keep-prefix-cache"
# Requests that fail are told by kind, and by the status; the report is there.
for command in serve sim; do
  status=0
  "$bench_program" "$command" --num-prompts 3 --random-input-len 200000 \
    --save-result --result-dir "$work" --result-filename "$command.json" \
    >"$work/failed.log" 2>"$work/failed.err.log" || status=$?
  [ "$status" = 3 ] || fail "$command: expected status 3, got $status"
  grep -q '3 of 3 requests failed: 3 [A-Z_]*, such as: ' \
    "$work/failed.err.log" || fail "$command: no word of the failed requests"
  grep -Eq 'Failed requests: +3$' "$work/failed.log" &&
    [ -s "$work/$command.json" ] || fail "$command: no report"
done
status=0
"$bench_program" compare "$work/serve.json" "$work/sim.json" \
  >"$work/compare.log" 2>"$work/compare.err.log" || status=$?
[ "$status" = 3 ] || fail "compare: expected status 3, got $status"
grep -q 'sim.json: 3 of 3 requests failed' "$work/compare.err.log" ||
  fail "compare: no word of the failed requests"
# A wrong command line is told apart from requests that failed.
status=0
"$bench_program" serve --num-prompt 3 >"$work/wrong.log" 2>&1 || status=$?
[ "$status" = 2 ] || fail "wrong command line: expected status 2, got $status"

kill -TERM "$engine"
wait "$engine" || fail "the engine did not end cleanly"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon did not end cleanly"

# An engine detaches at the first signal, and a second one does not wait for the
# step under way: here one of some 16 TFLOP, nearly all of them attention.
"$daemon_program" --metrics-listen 127.0.0.1:0 --max-num-batched-tokens 8192 \
  >"$work/daemon2.log" 2>&1 &
daemon=$!
"$engine_program" --mode tiny --tiny-layers 16 --tiny-heads 1 \
  --tiny-q-heads 256 --tiny-hidden 16 --tiny-mlp 16 >"$work/engine2.log" 2>&1 &
engine=$!
"$bench_program" serve --num-prompts 1 --random-input-len 8000 \
  --random-output-len 2 >"$work/client2.log" 2>&1 &
client=$!
scrape() {
  local port
  port=$(sed -n 's|.*metrics at http://127.0.0.1:\([0-9]*\)/.*|\1|p' \
    "$work/daemon2.log")
  [ -n "$port" ] || return 1
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  cat <&3
  exec 3>&-
}
steps_in_flight() { scrape | grep '^blockmgr_steps_in_flight'; }
await() {
  local _
  for _ in $(seq 1000); do
    if eval "$1"; then return; fi
    sleep 0.1
  done
  fail "waited in vain: $1"
}
await 'steps_in_flight | grep -q " [1-9]"'
# Every metric is explained, whoever makes it.
docs=$(dirname "${BASH_SOURCE[0]}")/../../docs/operations.md
scrape | sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' >"$work/metrics.log"
[ "$(wc -l <"$work/metrics.log")" -gt 40 ] || fail "expected metrics"
while read -r metric; do
  grep -Eq "^\|.*\`$metric[\`{]" "$docs" ||
    fail "docs/operations.md does not explain $metric"
done <"$work/metrics.log"
kill -TERM "$engine"
await 'grep -q detaching "$work/engine2.log"'
kill -TERM "$engine"
status=0
wait "$engine" || status=$?
[ "$status" = 143 ] || fail "second signal: expected status 143, got $status"
# Its request waits for an engine of the same shape.
refuses ' --tiny-layers: live requests need 16, got 4' \
  "$engine_program" --mode tiny
refuses ' --name: expected at most 256 bytes, got 300' \
  "$engine_program" --name "$(printf 'x%.0s' {1..300})"
kill "$client" "$daemon"
wait "$daemon" || fail "the daemon did not end cleanly without its engine"

# What no program knows is told, by name.
for program in "$daemon_program" "$engine_program" "$bench_program serve"; do
  # shellcheck disable=SC2086
  refuses --no-such-flag $program --no-such-flag
done
# A flag that cannot be is named as it was typed, not as the field it sets.
for command in serve sim; do
  refuses '^blockmgr-bench: --request-rate: expected' \
    "$bench_program" "$command" --request-rate 0
  refuses '^blockmgr-bench: --keep-tokens: expected either this or' \
    "$bench_program" "$command" --keep-ratio 0.5 --keep-tokens 5
done
refuses '^blockmgr-bench: --result-dir, --result-filename: have no effect' \
  "$bench_program" sim --result-dir "$work"
refuses '^blockmgr-bench: --sim-q-heads: expected a multiple of --sim-heads' \
  "$bench_program" sim --sim-heads 3
refuses 'such as: --compress-every: expected a multiple of 16 (--sim-page-size' \
  "$bench_program" sim --num-prompts 1 --keep-ratio 0.5 --compress-every 5
refuses ' --sim-q-heads: expected a multiple of --sim-heads' \
  "$engine_program" --mode sim --sim-heads 3
refuses ' --tiny-hidden: expected a multiple of 16' \
  "$engine_program" --mode tiny --tiny-hidden 3
refuses '^blockmgrd: --compress-every: needs --keep-ratio or' \
  "$daemon_program" --compress-every 16
# An output file that cannot be is told before the run, not after it.
missing="$work/client.log/report.json"  # below a file is no folder
for command in serve sim; do
  refuses "--result-dir: expected a file that can be written, got '$work/cl" \
    "$bench_program" "$command" --num-prompts 3 --save-result \
    --result-dir "$work/client.log"
  if grep -q 'requests' "$work/refused.log"; then
    fail "$command: expected no run"
  fi
done
refuses '--json: expected a file that can be written' \
  "$bench_program" micro --tiny --runs 1 --json "$missing"
refuses '--output: expected a file that can be written' \
  "$bench_program" kernels --output "$missing"
# Shards part the KV heads evenly.
refuses '--num-shards: expected a divisor of --tiny-heads' \
  "$engine_program" --mode tiny --num-shards 3
# A window below a page is refused, by name.
refuses '--tiny-windows\[0\]: expected at least --page-size' \
  "$engine_program" --mode tiny --tiny-windows 8,0
# Flags of the other mode or backend are refused.
refuses --tiny-layers "$engine_program" --mode sim --tiny-layers 3
refuses '--cuda-device: has no effect without --backend cuda' \
  "$engine_program" --cuda-device 1
refuses '--threads: has no effect with --backend cuda' \
  "$engine_program" --backend cuda --threads 8
refuses '--seed: has no effect with --model' \
  "$engine_program" --mode llama --model "$work/none.gguf" --seed 7
refuses '--served-model-name: expected at most 256 bytes, got 300' \
  "$engine_program" --mode llama --random-weights smollm2-135m \
  --served-model-name "$(printf 'x%.0s' {1..300})"
# The host blocks have to fit beside the rest.
refuses '--num-host-blocks: expected at most .* beside weights and pool' \
  "$engine_program" --page-size 16384 --num-blocks 2 --num-host-blocks 16777216
# The system may refuse threads, here for want of room for their stacks. (There
# is none for a program with a sanitizer.)
confined='ulimit -v 900000; exec "$0" "$@"'
if bash -c "$confined" "$engine_program" --version >"$work/version.log" 2>&1
then
  refuses ' --threads: expected at most .*, as the system refuses more' \
    bash -c "$confined" "$engine_program" --threads 1024
fi
# The shortest time to look for a daemon is not without end.
refuses ' within 1 ms: ' timeout 60 \
  "$engine_program" --address "unix:$work/none.sock" --attach-timeout 0.0001
# A language model needs its file, and one that can be read.
refuses '--model: expected either a GGUF file or --random-weights' \
  "$engine_program" --mode llama
echo "no model" >"$work/model.gguf"
refuses 'model.gguf' "$engine_program" --mode llama --model "$work/model.gguf"
# Without a GPU, the way out is told.
told='--cuda-device: .*found none.*; --backend cpu needs none'
no_cuda='--backend: expected cpu, got cuda: this build has no CUDA'
CUDA_VISIBLE_DEVICES='' refuses "$told\|$no_cuda" \
  "$engine_program" --mode tiny --backend cuda
# A table of query statistics must be one, and of the model's shape.
echo nothing >"$work/bad.qstats"
refuses '--query-stats: .*bad.qstats: query statistics: file: expected to' \
  "$engine_program" --query-stats "chat=$work/bad.qstats"
