# The jobs of scripts/gpu.sh run, in the order in which they tell most. To be
# sourced. A job finds in its environment:
#   bin      folder of programs
#   out      folder of results
#   results  what the path of a result begins with: OUT/DEVICE_DATE_COMMIT_
#   shards   processes for tests
#   model    a GGUF file, or nothing
#   rehearse 1: tiny models on the CPU; or nothing
# shellcheck shell=bash disable=SC2034,SC2154

job_names=()
declare -A job_usual job_minimum job_sources job_about

# add_job NAME USUAL MINIMUM SOURCES ABOUT: seconds; paths as git takes them.
add_job() {
  job_names+=("$1")
  job_usual[$1]=$2
  job_minimum[$1]=$3
  job_sources[$1]=$4
  job_about[$1]=$5
}

kernel_sources="kernels blockmgr bench/kernel* bench/ceiling_kernels*"
line_sources="kernels blockmgr scheduler wire proto engine bench"
test_sources="${line_sources} tests/kernels tests/bench tests/e2e tests/testing"
add_job tests 120 20 "${test_sources}" "all tests for GPUs, on short lists"
add_job figures 40 15 "${kernel_sources}" \
  "what is promised of an H100, and whether it is kept"
add_job compare 90 20 "${kernel_sources} bench/compare_*.py" \
  "the same problems, by our kernels, PyTorch and FlashInfer"
add_job profiles 90 20 "${kernel_sources}" \
  "as uneven as real models, if the bundle has their lengths"
add_job layouts 60 20 "${kernel_sources}" \
  "vLLM's order of tensors beside ours"
add_job python 60 20 "kernels blockmgr python tests/python" \
  "tests of blockmgr.cuda, if the bundle has a wheel"
add_job kernels 150 30 "${kernel_sources}" \
  "every kernel, in all sizes, next to what the memory gives"
add_job model 300 90 "${line_sources} scripts/gpu_jobs.sh" \
  "Llama-3.1-8B's shape with random weights serves requests"
for tool in memcheck racecheck synccheck; do
  add_job "${tool}" 180 60 "kernels blockmgr tests/kernels" \
    "tests of kernels under compute-sanitizer"
done
add_job long 240 60 "${test_sources}" "all tests again, on long lists"

# Query heads for a KV head, and head_dim, of models with 8 KV heads.
declare -A model_shapes=([llama-3.1-8b]="4 128" [qwen3-4b]="4 128"
  [gemma-3-12b]="2 256" [gpt-oss-20b]="8 64")

# Prints the model that a file of lengths is of, or fails.
model_of_lengths() {
  local model
  for model in "${!model_shapes[@]}"; do
    if [[ ${1##*/} == "${model}"*.npy ]]; then
      echo "${model}"
      return
    fi
  done
  return 1
}

# Scripts that jobs call. In a bundle they are beside the programs.
scripts_of_jobs=(bench/compare_pytorch.py bench/compare_flashinfer.py
  tests/kernels/cuda/sanitize_gpu_tests.py)

# Prints where a script is.
path_of_script() {
  local script
  for script in "${scripts_of_jobs[@]}"; do
    if [[ ${script##*/} == "$1" ]]; then
      if ((bundled)); then echo "${bin}/$1"; else echo "${root}/${script}"; fi
    fi
  done
}

children=()
stop_children() {
  if ((${#children[@]} == 0)); then return; fi
  kill "${children[@]}" 2>/dev/null || true
  wait "${children[@]}" 2>/dev/null || true
  children=()
}

# A command that runs tests, in shards: how each ended, and all of those that
# failed.
run_shards() {
  local name=$1 shard log
  shift
  children=()
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
  children=()
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
  local tool=$1 sanitizer shards=$((shards < 16 ? shards : 16)) found_no_gpu=0
  sanitizer=$(PATH=${PATH}:/usr/local/cuda/bin command -v compute-sanitizer) || {
    echo "compute-sanitizer: not found in PATH or /usr/local/cuda/bin"
    return 1
  }
  # 77, no success either: no device, or not one that the tool knows.
  run_shards "kernels_gpu_test.${tool}" \
    python3 "$(path_of_script sanitize_gpu_tests.py)" "${sanitizer}" \
    --tool "${tool}" --error-exitcode 99 "${bin}/kernels_gpu_test" --gtest_brief=1
}

# bench_kernels NAME FLAG..: blockmgr-bench kernels, its JSON, and its table.
bench_kernels() {
  local name=$1
  shift
  "${bin}/blockmgr-bench" kernels "$@" --output "${results}${name}.json" |
    tee "${results}${name}.txt"
}

# compare_problem NAME FLAG..: one problem, by our decode attention, PyTorch and
# FlashInfer. FlashInfer may be missing, and says so.
compare_problem() {
  local name=$1 problem=${out}/problem.bin rival status=0
  shift
  rm -f "${problem}"
  bench_kernels "${name}_ours" --problem "${problem}" "$@" || return 1
  for rival in pytorch flashinfer; do
    # PyTorch comes with its own libraries.
    LD_LIBRARY_PATH=${system_libraries} python3 \
      "$(path_of_script "compare_${rival}.py")" --problem "${problem}" \
      >"${results}${name}_${rival}.json" || {
      rm "${results}${name}_${rival}.json"
      if [[ ${rival} == pytorch ]]; then status=1; fi
      continue
    }
    cat "${results}${name}_${rival}.json"
  done
  rm -f "${problem}"
  return "${status}"
}

# Sets `files` to the packed lengths of a model, and `shape` to its flags.
find_lengths() {
  local group_size head_dim
  read -r group_size head_dim <<<"${model_shapes[$1]}"
  shape=(--group-size "${group_size}" --head-dim "${head_dim}")
  files=()
  for file in "${root}/lengths/$1"*.npy; do
    if [[ -f ${file} ]]; then files+=("${file}"); fi
  done
  ((${#files[@]} > 0))
}

run_compare() {
  local status=0 name file
  local -a files shape
  compare_problem compare --kv-mib 256 --distribution ragged --group-size 4 ||
    status=1
  for name in "${!model_shapes[@]}"; do
    if find_lengths "${name}"; then
      compare_problem "compare_${name}" --lengths "${files[0]}" "${shape[@]}" \
        --kernels decode || status=1
    fi
  done
  return "${status}"
}

# Of each model all lengths, and even ones to compare with.
run_profiles() {
  local status=0 found=0 name file
  local -a files shape flags
  for name in "${!model_shapes[@]}"; do
    find_lengths "${name}" || continue
    found=1
    flags=()
    for file in "${files[@]}"; do flags+=(--lengths "${file}"); done
    bench_kernels "profiles_${name}_even" --distribution uniform \
      --kv-mib 256,1024 --kernels decode,compact "${shape[@]}" || status=1
    bench_kernels "profiles_${name}" "${flags[@]}" --kernels decode,compact \
      "${shape[@]}" || status=1
  done
  if ((!found)); then
    echo "profiles: expected a bundle with lengths (gpu.sh pack --lengths)"
    return 1
  fi
  return "${status}"
}

# The kernels that touch K and V, in our order of pages and in vLLM's.
run_layouts() {
  local status=0 order
  for order in pages nhd-pairs; do
    bench_kernels "layouts_${order}" --tensor-order "${order}" \
      --kv-mib 256,1024 --distribution uniform,ragged --group-size 4 \
      --kernels decode,chunk,append,compact,copy_blocks,snapkv,keydiff || status=1
  done
  return "${status}"
}

run_python() {
  if ((bundled)); then
    [[ -d ${root}/python ]] || {
      echo "python: expected a bundle with a wheel (gpu.sh pack --wheel)"
      return 1
    }
    export PYTHONPATH=${root}/python
  fi
  BLOCKMGR_TEST_DEVICE=cuda \
    python3 -m pytest --quiet -p no:cacheprovider "${root}/tests/python/device"
}

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
  for ((waited = 0; waited < 1500; ++waited)); do
    if grep --quiet 'attached to' "${out}/${name}.engine.log"; then
      grep 'matrix products' "${out}/${name}.engine.log"
      return 0
    fi
    kill -0 "${engine}" 2>/dev/null || break
    sleep 0.2
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
      --save-result --result-dir "${out}" \
      --result-filename "$(basename "${results}")model_${name}-${label}.json" \
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

# Runs a job to its end. Nothing that it has started is left.
run_job() {
  system_libraries=${LD_LIBRARY_PATH:-}
  if ((bundled)); then
    export LD_LIBRARY_PATH=${root}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
  fi
  trap stop_children EXIT
  trap 'exit 143' TERM
  case "$1" in
    tests) BLOCKMGR_TEST_SMALL=1 run_tests ;;
    long) run_tests ;;
    figures) bench_kernels figures --check ;;
    kernels) bench_kernels kernels ;;
    compare) run_compare ;;
    profiles) run_profiles ;;
    layouts) run_layouts ;;
    model) run_model ;;
    python) run_python ;;
    memcheck | racecheck | synccheck) run_sanitizer "$1" ;;
  esac
}
