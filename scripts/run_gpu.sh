#!/usr/bin/env bash
# Tests and measures the CUDA kernels on this machine's GPU, from a bundle of
# scripts/pack_gpu.sh. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly system_libraries=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH=${here}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
readonly bin=${here}/bin

# Tests in so many processes: most of their time is the CPU's, which computes
# what is expected.
shards=$(nproc)
out=gpu-results
model=

usage() {
  cat <<'HELP'
Usage: run.sh [--out FOLDER] [--shards N] [--model FILE] JOB..

Jobs, in the order in which they tell most:
  tests      all tests for GPUs, on short lists
  figures    what is promised of an H100, and whether it is kept
  compare    one problem, by our kernels and by PyTorch
  python     tests of blockmgr.cuda, if the bundle has a wheel (pack_gpu.sh
             --wheel)
  kernels    every kernel, in all sizes, next to what the memory gives
  memcheck   the tests of kernels under compute-sanitizer; also racecheck and
             synccheck
  long       all tests again, on long lists
  model      a whole model: Llama-3.1-8B's shape with random weights serves
             requests without eviction and at 20 %; and the GGUF file of
             --model, if it is given, answers questions

Each writes what it prints to FOLDER/JOB.log (tests: what they print to
FOLDER/*_test*.log), and what it measured to FOLDER/*.json, as far as it has
come. Default: gpu-results, and as many processes for tests as there are
processors. Exit status: 0 if all jobs succeeded, 1 otherwise, 2 for a wrong
command line.
HELP
}

wrong_usage() {
  echo "run.sh: $*" >&2
  echo "More: run.sh --help" >&2
  exit 2
}

# A command that runs tests, in shards: how each ended, and all of those that
# failed.
run_shards() {
  local name=$1 shard log
  shift
  local -a children=()
  : >"${out}/${name}.log"
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${shard} \
      "$@" >"${out}/${name}.${shard}.log" 2>&1 &
    children+=($!)
  done
  local status=0
  for shard in "${!children[@]}"; do
    log=${out}/${name}.${shard}.log
    if wait "${children[shard]}"; then
      grep --extended-regexp '^\[(=====|  PASSED|  SKIPPED)|SUMMARY' "${log}" || true
    else
      status=1
      echo "shard ${shard} failed:"
      cat "${log}"
    fi
    if grep --quiet '^no GPU: ' "${log}"; then found_no_gpu=1; fi
    cat "${log}" >>"${out}/${name}.log"
    rm "${log}"
  done
  return "${status}"
}

# A run that skipped its tests has shown nothing.
run_tests() {
  local status=0 found_no_gpu=0 program
  for program in kernels_gpu_test bench_gpu_test e2e_gpu_test; do
    echo "== ${program}"
    run_shards "${program}" "${bin}/${program}" --gtest_brief=1 || status=1
  done
  if ((found_no_gpu)); then
    echo "no GPU: tests have skipped themselves"
    status=1
  fi
  return "${status}"
}

# In no more shards than have tests of kernels: the tools fail without any.
run_sanitizer() {
  local tool=$1 sanitizer shards=$((shards < 16 ? shards : 16))
  sanitizer=$(PATH=${PATH}:/usr/local/cuda/bin command -v compute-sanitizer) || {
    echo "compute-sanitizer: not found in PATH or /usr/local/cuda/bin"
    return 1
  }
  # 77, no success either: no device, or not one that the tool knows.
  run_shards "kernels_gpu_test.${tool}" \
    python3 "${bin}/sanitize_gpu_tests.py" "${sanitizer}" --tool "${tool}" \
    --error-exitcode 99 "${bin}/kernels_gpu_test" --gtest_brief=1
}

# PyTorch comes with its own libraries.
run_compare() {
  local problem=${out}/problem.bin
  rm -f "${problem}"
  "${bin}/blockmgr-bench" kernels --kv-mib 256 --distribution ragged \
    --group-size 4 --problem "${problem}" --output "${out}/ours.json" &&
    LD_LIBRARY_PATH=${system_libraries} python3 "${bin}/compare_pytorch.py" \
      --problem "${problem}" >"${out}/theirs.json" && cat "${out}/theirs.json"
}

run_python() {
  [[ -d ${here}/python ]] || {
    echo "python: expected a bundle with a wheel (pack_gpu.sh --wheel)"
    return 1
  }
  PYTHONPATH=${here}/python BLOCKMGR_TEST_DEVICE=cuda \
    python3 -m pytest --quiet -p no:cacheprovider "${here}/tests/python/device"
}

children=()
stop_children() {
  local child
  for child in "${children[@]}"; do kill "${child}" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "${child}" 2>/dev/null || true; done
  children=()
}
trap stop_children EXIT

# A daemon and an engine on the GPU. Returns when the engine is attached, or 1
# if it is not within five minutes.
start_engine() {
  local name=$1 waited
  shift
  "${bin}/blockmgrd" --listen "${address}" --max-num-batched-tokens 8192 \
    --max-num-seqs 256 2>"${out}/${name}.daemon.log" &
  children+=($!)
  "${bin}/blockmgr-engine" --mode llama --backend cuda --address "${address}" \
    "$@" 2>"${out}/${name}.engine.log" &
  local engine=$!
  children+=("${engine}")
  for ((waited = 0; waited < 300; ++waited)); do
    if grep --quiet 'attached to' "${out}/${name}.engine.log"; then
      grep 'matrix products' "${out}/${name}.engine.log"
      return 0
    fi
    kill -0 "${engine}" 2>/dev/null || break
    sleep 1
  done
  cat "${out}/${name}.engine.log"
  return 1
}

# What the engine's requests take, without eviction and with it.
serve_twice() {
  local name=$1 label
  shift
  local -a evicts=()
  for label in full evicted; do
    "${bin}/blockmgr-bench" serve --address "${address}" \
      --dataset-name random --random-input-len 2048 --random-output-len 128 \
      --random-range-ratio 0.5 --num-prompts 128 --request-rate inf \
      --save-result --result-dir "${out}" --result-filename "${name}-${label}.json" \
      --label "${name}-${label}" "$@" ${evicts[@]+"${evicts[@]}"} || return 1
    evicts=(--eviction "keydiff | adakv" --keep-ratio 0.2)
  done
}

run_model() {
  local folder status=0
  folder=$(mktemp --directory)
  address=unix:${folder}/blockmgr.sock
  if [[ -n ${model} ]]; then
    start_engine file --model "${model}" --dtype float16 --num-blocks 8192 &&
      "${bin}/blockmgr-bench" generate --address "${address}" --model "${model}" \
        --prompt "What is the capital of France?" \
        --prompt "Write one sentence about the sea." --max-tokens 40 &&
      serve_twice file || status=1
    stop_children
  fi
  start_engine llama-8b --random-weights llama-3.1-8b --num-blocks 20480 \
    --cuda-decode balanced && serve_twice llama-8b || status=1
  stop_children
  rm -rf "${folder}"
  return "${status}"
}

run_job() {
  case "$1" in
    tests) BLOCKMGR_TEST_SMALL=1 run_tests ;;
    long) run_tests ;;
    figures)
      "${bin}/blockmgr-bench" kernels --check --output "${out}/figures.json"
      ;;
    kernels) "${bin}/blockmgr-bench" kernels --output "${out}/kernels.json" ;;
    compare) run_compare ;;
    model) run_model ;;
    python) run_python ;;
    memcheck | racecheck | synccheck) run_sanitizer "$1" ;;
  esac
}

jobs=()
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --out)
      (($# >= 2)) || wrong_usage "--out needs a folder"
      out=$2
      shift
      ;;
    --shards)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] ||
        wrong_usage "--shards: expected a number above 0, got '${2:-}'"
      shards=$2
      shift
      ;;
    --model)
      [[ -f ${2:-} ]] || wrong_usage "--model: expected a file, got '${2:-}'"
      model=$2
      shift
      ;;
    tests | long | figures | kernels | compare | model | python | memcheck | \
      racecheck | synccheck) jobs+=("$1") ;;
    *) wrong_usage "unknown argument: $1" ;;
  esac
  shift
done
((${#jobs[@]} > 0)) || wrong_usage "expected a job"

mkdir -p "${out}"
failed=0
for job in "${jobs[@]}"; do
  began=${SECONDS}
  result=ok
  run_job "${job}" 2>&1 | tee "${out}/${job}.log" || result=FAILED
  [[ ${result} == ok ]] || failed=1
  echo "run.sh: ${job}: ${result}, $((SECONDS - began)) s"
done
exit "${failed}"
