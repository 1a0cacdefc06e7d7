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
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
fail() {
  echo "programs_test.sh: $1" >&2
  tail -n 20 "$work"/*.log >&2
  exit 1
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
kill -TERM "$engine"
wait "$engine" || fail "the engine did not end cleanly"
kill -TERM "$daemon"
wait "$daemon" || fail "the daemon did not end cleanly"

# What no program knows is told, by name.
for program in "$daemon_program" "$engine_program" "$bench_program serve"; do
  # shellcheck disable=SC2086
  if $program --no-such-flag >"$work/flag.log" 2>&1; then
    fail "$program took an unknown flag"
  fi
  grep -q -- '--no-such-flag' "$work/flag.log" ||
    fail "$program does not name an unknown flag"
done
# Shards part the KV heads evenly.
if "$engine_program" --mode tiny --num-shards 3 >"$work/shards.log" 2>&1; then
  fail "blockmgr-engine took 3 shards of 2 heads"
fi
grep -q 'num_shards: expected a divisor of num_heads' "$work/shards.log" ||
  fail "no word of num_shards"
# A window below a page is refused, by name.
if "$engine_program" --mode tiny --tiny-windows 8,0 >"$work/windows.log" 2>&1
then
  fail "blockmgr-engine took a window of half a page"
fi
grep -q 'group_windows\[0\]: expected at least page_size' \
  "$work/windows.log" || fail "no word of group_windows"
# Nor is a flag of the other mode passed over.
if "$engine_program" --mode sim --tiny-layers 3 >"$work/mode.log" 2>&1; then
  fail "blockmgr-engine took --tiny-layers with --mode sim"
fi
grep -q -- '--tiny-layers' "$work/mode.log" || fail "no word of --tiny-layers"
# Or of the other backend.
if "$engine_program" --cuda-device 1 >"$work/backend.log" 2>&1; then
  fail "blockmgr-engine took --cuda-device with --backend cpu"
fi
grep -q -- '--cuda-device: has no effect without --backend cuda' \
  "$work/backend.log" || fail "no word of --cuda-device"
