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
kernel_sources+=" scripts/gpu_jobs.sh"
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
add_job huge 40 20 "${kernel_sources}" \
  "one list as long as all others, a head of a million"
add_job graphs 180 120 "${line_sources} scripts/gpu_jobs.sh" \
  "decode steps in CUDA graphs beside --cuda-graphs off"
add_job python 60 20 "kernels blockmgr python tests/python" \
  "tests of blockmgr.cuda, if the bundle has a wheel"
add_job kernels 450 60 "${kernel_sources}" \
  "every kernel, in all sizes, next to what the memory gives"
add_job model 480 150 "${line_sources} scripts/gpu_jobs.sh" \
  "Llama-3.1-8B's shape serves; measured beside simulated"
add_job papers 300 150 "${line_sources} python scripts/gpu_jobs.sh" \
  "papers' figures: time and memory by context and chunk"
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
  bench/compare_sim.py tests/kernels/cuda/sanitize_gpu_tests.py
  python/bench/hf_memory.py)

# Prints where a script is.
path_of_script() {
  local script
  for script in "${scripts_of_jobs[@]}"; do
    if [[ ${script##*/} == "$1" ]]; then
      if ((bundled)); then echo "${bin}/$1"; else echo "${root}/${script}"; fi
    fi
  done
}

# stopped: 1 after a SIGTERM, which timeout sends to the whole group. A second one
# ends an engine before it has logged what its steps took.
children=()
engine='' engine_name='' stopped=''
stop_children() {
  local child
  if ((${#children[@]} == 0)); then return; fi
  for child in "${children[@]}"; do
    if [[ -n ${stopped} && ${child} == "${engine}" ]]; then continue; fi
    kill "${child}" 2>/dev/null || true
  done
  wait "${children[@]}" 2>/dev/null || true
  children=()
  if [[ -n ${engine_name} ]]; then
    grep --no-filename --extended-regexp \
      'matrix products|steps of|other steps|CUDA graphs' \
      "${out}/${engine_name}.engine.log" | cut -d ']' -f 4- |
      tee "${results}${engine_name}_steps.txt" || true
  fi
  engine='' engine_name=''
}

# Runs a command that runs tests, in shards. Prints how each ended, and all output
# of shards that failed.
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

# Runs tests in at most 16 shards: the tools fail in a shard without tests of
# kernels.
run_sanitizer() {
  local tool=$1 sanitizer shards=$((shards < 16 ? shards : 16)) found_no_gpu=0
  sanitizer=$(PATH=${PATH}:/usr/local/cuda/bin command -v compute-sanitizer) || {
    echo "compute-sanitizer: not found in PATH or /usr/local/cuda/bin"
    return 1
  }
  # Exit status 77 (no device, or one that the tool does not know) is a failure,
  # too.
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
  compare_problem compare --kv-mib 256 --distribution ragged --group-size 4 \
    --kernels decode || status=1
  for name in "${!model_shapes[@]}"; do
    if find_lengths "${name}"; then
      compare_problem "compare_${name}" --lengths "${files[0]}" "${shape[@]}" \
        --kv-mib 256 --kernels decode || status=1
    fi
  done
  return "${status}"
}

# Measures decode on the lengths of each model, and checks what is promised.
run_profiles() {
  local status=0 found=0 name file
  local -a files shape flags
  for name in "${!model_shapes[@]}"; do
    find_lengths "${name}" || continue
    found=1
    flags=()
    for file in "${files[@]}"; do flags+=(--lengths "${file}"); done
    bench_kernels "profiles_${name}" --check "${flags[@]}" "${shape[@]}" ||
      status=1
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

# Measures lists that are far longer than all others: one SM did much of them
# alone before.
run_huge() {
  local status=0
  local kernels=decode,decode_invariant,decode_sinks,index_entries,snapkv,keydiff
  kernels+=,select_uniform,select_global,select_adakv,select_critical,select_floor
  kernels+=,plan_moves,compact
  bench_kernels huge_list --distribution one-huge --kv-mib 1024 \
    --group-size 1,4 --kernels "${kernels}" || status=1
  bench_kernels huge_head --distribution prompt --num-heads 1 \
    --prompt-length 1048576 --group-size 4 --kernels "${kernels}" || status=1
  bench_kernels huge_sinks --distribution uniform,ragged --kv-mib 256,1024 \
    --group-size 4,8 --kernels decode,decode_sinks || status=1
  return "${status}"
}

# Steps of one, 16 and 256 rows. What they take is in the engine's log.
run_graphs() {
  local status=0 blocks mode rows
  for mode in on off; do
    start_llama "graphs_${mode}" --cuda-graphs "${mode}" || return 1
    for rows in 1 16 256; do
      measure "graphs_${mode}_${rows}" --request-rate inf \
        --num-prompts "$(requests "${rows}")" \
        --random-input-len "$(scaled 512)" --random-output-len "$(scaled 256)" ||
        status=1
    done
    stop_children
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

# Scheduler flags of daemons and of simulations.
scheduler_flags=(--max-num-batched-tokens 8192 --max-num-seqs 256)
# Seconds that a workload may take.
readonly workload_limit=240

# scaled N: a number of tokens; in a rehearsal fewer, of whole pages, and no
# fewer than snapkv observes.
scaled() {
  if [[ -n ${rehearse} ]]; then
    echo $((16 * (2 + $1 / 1024)))
  else
    echo "$1"
  fi
}

# requests N: a number of requests; in a rehearsal a few.
requests() {
  if [[ -n ${rehearse} && $1 -gt 4 ]]; then echo 4; else echo "$1"; fi
}

# Prints how many blocks of Llama-3.1-8B (2 MiB in bf16, 16 tokens) this GPU has
# room for beside its weights. A tenth of the memory is for what a step needs.
count_blocks() {
  local free weights=15400
  if [[ -n ${rehearse} ]]; then
    echo 2048
    return
  fi
  free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits |
    head --lines=1) || free=
  if [[ ! ${free} =~ ^[0-9]+$ ]] || ((free * 9 / 10 - weights < 4096)); then
    echo "expected a GPU with 22 GiB free, nvidia-smi says '${free} MiB'" >&2
    return 1
  fi
  echo $(((free * 9 / 10 - weights) / 2))
}

# start_engine NAME FLAG..: a daemon with scheduler_flags, and an engine, in a
# rehearsal a tiny one. Sets `engine` to its process. Returns when it is attached,
# or 1 if it is not within five minutes.
start_engine() {
  local name=$1 waited
  shift
  engine_name=${name}
  if [[ -n ${rehearse} ]]; then
    set -- --mode tiny --num-blocks 2048
  else
    set -- --mode llama --backend cuda "$@"
  fi
  "${bin}/blockmgrd" --listen "${address}" "${scheduler_flags[@]}" \
    2>"${out}/${name}.daemon.log" &
  children+=($!)
  "${bin}/blockmgr-engine" --address "${address}" "$@" \
    2>"${out}/${name}.engine.log" &
  engine=$!
  children+=("${engine}")
  for ((waited = 0; waited < 1500; ++waited)); do
    if grep --quiet 'attached to' "${out}/${name}.engine.log"; then
      grep 'matrix products' "${out}/${name}.engine.log" || true
      return 0
    fi
    kill -0 "${engine}" 2>/dev/null || break
    sleep 0.2
  done
  cat "${out}/${name}.engine.log"
  return 1
}

# start_llama NAME FLAG..: start_engine with the shape of Llama-3.1-8B, and as many
# blocks as there is room for.
start_llama() {
  blocks=$(count_blocks) || return 1
  echo "${blocks} blocks"
  start_engine "$1" --random-weights llama-3.1-8b --num-blocks "${blocks}" \
    --cuda-decode balanced "${@:2}"
}

# measure NAME FLAG..: a workload, served by the engine, until one of the two
# ends.
measure() {
  local name=$1 client
  shift
  timeout --foreground "${workload_limit}" "${bin}/blockmgr-bench" serve \
    --address "${address}" --disable-tqdm --label "${name}" --save-result \
    --result-dir "${out}" --result-filename "${results##*/}${name}.json" "$@" \
    >/dev/null &
  client=$!
  while kill -0 "${client}" 2>/dev/null; do
    if ! kill -0 "${engine}" 2>/dev/null; then
      echo "${name}: the engine has ended"
      kill "${client}" 2>/dev/null || true
      break
    fi
    sleep 0.1
  done
  if wait "${client}"; then
    echo "${name}: measured"
  else
    echo "${name}: no result"
    return 1
  fi
}

# table NAME RUN..: what was measured, and simulated where it was, of these runs.
table() {
  local name=$1 run
  local -a runs=()
  shift
  for run in "$@"; do
    if [[ ! -f ${results}${run}.json ]]; then continue; fi
    if [[ -f ${results}${run}_sim.json ]]; then
      runs+=("${results}${run}.json=${results}${run}_sim.json")
    else
      runs+=("${results}${run}.json")
    fi
  done
  if ((${#runs[@]} == 0)); then return; fi
  python3 "$(path_of_script compare_sim.py)" table "${runs[@]}" \
    --output "${results}${name}.json" >"${results}${name}.txt"
}

# Sets `rates` to the simulator's flags for this machine, by a run of one
# request at a time.
calibrate() {
  local ceilings=${results}model_ceilings.json
  measure model_one --num-prompts 4 --max-concurrency 1 --request-rate inf \
    --random-input-len "$(scaled 8192)" --random-output-len "$(scaled 128)" ||
    return 1
  # shellcheck disable=SC2207  # Words without spaces.
  rates=($(python3 "$(path_of_script compare_sim.py)" rates \
    --ceilings "${ceilings}" --calibration "${results}model_one.json"))
  ((${#rates[@]} > 0)) && echo "simulated: ${rates[*]}"
}

# measure_and_simulate NAME FLAG..: adds a line to the table.
measure_and_simulate() {
  local name=model_$1
  shift
  measure "${name}" "$@" || return 1
  models+=("${name}")
  if ((${#rates[@]} > 0)); then
    "${bin}/blockmgr-bench" sim "${scheduler_flags[@]}" "${rates[@]}" \
      --num-blocks "${blocks}" --label "${name}" --disable-tqdm --save-result \
      --result-dir "${out}" --result-filename "${results##*/}${name}_sim.json" \
      "$@" >/dev/null || return 1
  fi
  table model "${models[@]}"
}

# Prints a trace of conversations of several turns, each with all that was said
# before it, in Mooncake's form.
make_turns() {
  local turns=4
  if [[ -n ${rehearse} ]]; then turns=2; fi
  awk -v conversations="$(requests 64)" -v turns="${turns}" \
    -v output="$(scaled 128)" '
    BEGIN {
      for (turn = 1; turn <= turns; ++turn) {
        for (c = 0; c < conversations; ++c) {
          ids = ""
          for (i = 0; i < 2 * turn; ++i) ids = ids (i ? ", " : "") c * 64 + i
          printf "{\"timestamp\": %d, \"input_length\": %d, " \
                 "\"output_length\": %d, \"hash_ids\": [%s]}\n",
                 1000 * turn, 1024 * turn, output, ids
        }
      }
    }'
}

# The workloads of the job model, those that tell most first.
serve_workloads() {
  local status=0 file set
  local -a flags
  local -a keydiff=(--eviction "keydiff | adakv" --keep-ratio 0.2)
  local -a snapkv=(--eviction "snapkv | adakv" --keep-ratio 0.2)
  local -a decode=(--eviction-mode decode --compress-every "$(scaled 512)")
  flags=(--request-rate inf --num-prompts "$(requests 256)"
    --max-concurrency "$(requests 256)" --random-range-ratio 0.5
    --random-input-len "$(scaled 2048)" --random-output-len "$(scaled 512)")
  measure_and_simulate closed_full "${flags[@]}" || status=1
  measure_and_simulate closed_keydiff "${flags[@]}" "${keydiff[@]}" || status=1
  measure_and_simulate closed_snapkv "${flags[@]}" "${snapkv[@]}" || status=1
  # By simulation, these requests fill the pool of an H200 without eviction.
  flags=(--request-rate inf --num-prompts "$(requests 256)"
    --max-concurrency "$(requests 256)" --random-input-len "$(scaled 512)"
    --random-output-len "$(scaled 4096)")
  measure_and_simulate long_full "${flags[@]}" || status=1
  measure_and_simulate long_keydiff "${flags[@]}" "${keydiff[@]}" "${decode[@]}" ||
    status=1
  measure_and_simulate long_snapkv "${flags[@]}" "${snapkv[@]}" "${decode[@]}" ||
    status=1
  make_turns >"${out}/turns.jsonl"
  flags=(--dataset-name mooncake --dataset-path "${out}/turns.jsonl"
    --request-rate inf --max-concurrency "$(requests 64)")
  measure_and_simulate turns_full "${flags[@]}" || status=1
  measure_and_simulate turns_keydiff "${flags[@]}" "${keydiff[@]}" \
    --share-compressed-prefixes --share-multiple 512 || status=1
  for file in "${root}"/trace.*; do
    if [[ ! -f ${file} ]]; then
      echo "no trace was packed (gpu.sh pack --trace FILE): none is served"
      continue
    fi
    set=azure
    if [[ ${file} == *.jsonl ]]; then set=mooncake; fi
    head --lines="$(requests 256)" "${file}" >"${out}/${file##*/}"
    flags=(--dataset-name "${set}" --dataset-path "${out}/${file##*/}"
      --request-rate inf --max-concurrency "$(requests 256)")
    measure_and_simulate trace_full "${flags[@]}" || status=1
    measure_and_simulate trace_keydiff "${flags[@]}" "${keydiff[@]}" || status=1
  done
  return "${status}"
}

# A language model of a file answers, and serves.
serve_file() {
  local -a flags=(--request-rate inf --num-prompts 128 --random-range-ratio 0.5
    --random-input-len 2048 --random-output-len 128)
  start_engine file --model "${model}" --dtype float16 --num-blocks 8192 &&
    "${bin}/blockmgr-bench" generate --address "${address}" --model "${model}" \
      --prompt "What is the capital of France?" \
      --prompt "Write one sentence about the sea." --max-tokens 40 &&
    measure model_file_full "${flags[@]}" &&
    measure model_file_keydiff "${flags[@]}" --eviction "keydiff | adakv" \
      --keep-ratio 0.2
}

run_model() {
  local status=0 blocks
  local -a rates=() models=()
  if [[ -n ${model} && -z ${rehearse} ]]; then
    serve_file || status=1
    stop_children
  fi
  if [[ -n ${rehearse} ]]; then
    printf '{"results": [%s, %s, %s]}\n' \
      '{"kernel": "read_ceiling", "gb_per_s": 1e6}' \
      '{"kernel": "decode", "gb_per_s": 1e6}' \
      '{"kernel": "chunk", "tflop_per_s": 1e6}' >"${results}model_ceilings.json"
  else
    bench_kernels model_ceilings --kv-mib 1024 --distribution uniform \
      --group-size 4 --kernels decode,chunk || status=1
  fi
  start_llama llama-8b || return 1
  calibrate || status=1
  serve_workloads || status=1
  cat "${results}model.txt" || status=1
  return "${status}"
}

# The efficiency figures of the papers, each with the same engine.
serve_papers() {
  local status=0 name size context
  local -a flags names=()
  # CriticalKV (2502.03805): batches of 4, 32k, 40 %.
  flags=(--request-rate inf --num-prompts 4 --max-concurrency 4
    --random-input-len "$(scaled 32768)" --random-output-len "$(scaled 256)")
  for name in full adakv critical; do
    names+=("papers_32k_${name}")
    case "${name}" in
      full) measure "papers_32k_${name}" "${flags[@]}" ;;
      adakv)
        measure "papers_32k_${name}" "${flags[@]}" --keep-ratio 0.4 \
          --eviction "snapkv | adakv"
        ;;
      critical)
        measure "papers_32k_${name}" "${flags[@]}" --keep-ratio 0.4 \
          --eviction "snapkv | adakv | critical"
        ;;
    esac || status=1
    table papers "${names[@]}"
  done
  # KeyDiff (2504.15364): long prompts in chunks, with a fixed budget.
  local -a every=(--eviction "keydiff | uniform" --eviction-mode every-chunk
    --keep-tokens "$(scaled 8192)")
  flags=(--request-rate inf --num-prompts 1 --random-output-len "$(scaled 64)")
  for size in 1024 2048 4096 8192; do
    names+=("papers_128k_chunks_${size}")
    measure "papers_128k_chunks_${size}" "${flags[@]}" "${every[@]}" \
      --random-input-len "$(scaled 128000)" --compress-every "$(scaled "${size}")" ||
      status=1
    table papers "${names[@]}"
  done
  for context in 32000 64000 256000 429000; do
    names+=("papers_context_${context}")
    measure "papers_context_${context}" "${flags[@]}" "${every[@]}" \
      --random-input-len "$(scaled "${context}")" \
      --compress-every "$(scaled 4096)" || status=1
    table papers "${names[@]}"
  done
  names+=(papers_128k_full)
  measure papers_128k_full "${flags[@]}" --random-input-len "$(scaled 128000)" ||
    status=1
  table papers "${names[@]}"
  return "${status}"
}

# blockmgr.hf beside dense caches and masks of kvpress.
run_hf() {
  local -a flags=(--device cuda --layers 8 --heads 32 --kv-heads 8
    --head-dim 128 --chunk 4096 --contexts "4096,32768,131072")
  if [[ -n ${rehearse} ]]; then flags=(--layers 2 --contexts 64); fi
  if ((bundled)); then export PYTHONPATH=${root}/python; fi
  # The module of the wheel needs the libraries of the bundle.
  if ! python3 -c "import kvpress, torch, blockmgr.hf"; then
    echo "blockmgr.hf: not measured, expected a bundle with a wheel, and the" \
      "packages of python/requirements-hf.txt on this machine"
    return
  fi
  python3 "$(path_of_script hf_memory.py)" "${flags[@]}" | tee "${results}papers_hf.txt"
}

run_papers() {
  local status=0 blocks
  scheduler_flags+=(--max-model-len 524288)
  start_llama papers || return 1
  serve_papers || status=1
  cat "${results}papers.txt" || status=1
  stop_children
  run_hf || status=1
  return "${status}"
}

# Prints the folder of the cuBLAS of Python's packages, if there is one: a machine
# with PyTorch often has no other.
find_cublas() {
  python3 -c '
import glob, sys
for path in sys.path:
    for found in sorted(glob.glob(path + "/nvidia/*/lib/libcublas.so.*")):
        print(found.rpartition("/")[0])
        sys.exit()' 2>/dev/null || true
}

# Runs a job to its end. Nothing that it has started is left.
run_job() {
  system_libraries=${LD_LIBRARY_PATH:-}
  if ((bundled)); then
    export LD_LIBRARY_PATH=${root}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
  fi
  local cublas
  cublas=$(find_cublas)
  if [[ -n ${cublas} ]]; then
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}${cublas}
  fi
  local folder
  folder=$(mktemp --directory)
  address=unix:${folder}/blockmgr.sock
  # shellcheck disable=SC2064  # The folder is local.
  trap "stop_children; rm -rf '${folder}'" EXIT
  trap 'stopped=1; exit 143' TERM
  case "$1" in
    tests) BLOCKMGR_TEST_SMALL=1 run_tests ;;
    long) run_tests ;;
    figures) bench_kernels figures --check ;;
    # Distributions with kernels that were never timed come first.
    kernels)
      bench_kernels kernels --num-samples 15 \
        --distribution one-huge,prompt,ragged,uniform
      ;;
    huge) run_huge ;;
    graphs) run_graphs ;;
    compare) run_compare ;;
    profiles) run_profiles ;;
    layouts) run_layouts ;;
    model) run_model ;;
    papers) run_papers ;;
    python) run_python ;;
    memcheck | racecheck | synccheck) run_sanitizer "$1" ;;
  esac
}
