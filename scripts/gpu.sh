#!/usr/bin/env bash
# Packs what tests and measures this project on a GPU, and runs it there. See
# --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
# A bundle has the jobs beside the script, a checkout has sources.
if [[ -f ${here}/jobs.txt ]]; then
  readonly bundled=1 root=${here}
else
  readonly bundled=0 root=${here}/..
fi
# shellcheck source=scripts/gpu_jobs.sh
. "${here}/gpu_jobs.sh"

readonly bundle=blockmgr-gpu
readonly programs=(kernels_gpu_test bench_gpu_test e2e_gpu_test blockmgr-bench
  blockmgr-engine blockmgrd)
# Seconds between asking a job to end and ending it.
readonly grace=10

usage() {
  cat <<HELP
Usage: gpu.sh pack [--output FILE] [--built FOLDER] [--wheel FILE]
                   [--lengths FILE..] [--trace FILE]
       gpu.sh run [--time-limit SECONDS] [--out FOLDER] [--archive FILE]
                  [--shards N] [--model FILE] [--built FOLDER] [JOB..]

pack  makes a bundle for a machine that has a GPU and its driver, a distribution
      as old as this one or newer, and neither compilers nor packages: programs,
      their libraries, and this script. Builds the programs first, in
      build/release, or takes them from FOLDER as they are. Writes
      build/blockmgr-gpu.tar.xz, or FILE. There:

        tar -xf blockmgr-gpu.tar.xz && blockmgr-gpu/gpu.sh run --time-limit 580

run   runs jobs, one after the other, in the order in which they tell most: all
      jobs but those that are up to date, or the named ones, in the order in
      which they are named. In a checkout takes the programs of build/dev, or
      of FOLDER.

A job is up to date if bench/results/ had, when the bundle was made, a result of
the same device that measured the same sources: FILE.source beside a result has
the hash of the files that the job measures. So copy and commit what a run has
left in FOLDER:

  cp gpu-results/*_*_*_*.* bench/results/

Jobs, with the seconds they usually take, and those without which they are not
begun:
HELP
  local job
  for job in "${job_names[@]}"; do
    printf '  %-9s %4d %4d  %s\n' "${job}" "${job_usual[${job}]}" \
      "${job_minimum[${job}]}" "${job_about[${job}]}"
  done
  cat <<HELP

Options of pack:
  --wheel FILE     packs this wheel, built with the CUDA kernels (pip wheel .),
                   and the tests of blockmgr.cuda. They need the Python that the
                   wheel is for, numpy and pytest there
  --lengths FILE.. packs how many entries each head keeps, for the job profiles:
                   MODEL_ANYTHING.npy, of a model that the job knows, such as
                   llama-3.1-8b_snapkv.npy (docs/kernels.md)
  --trace FILE     packs a trace, whose lengths the job model serves: .jsonl is
                   of Mooncake, .csv of Azure (docs/bench.md)

Options of run:
  --time-limit SECONDS  of the whole run. A job begins if its minimum fits into
                   what is left. At the limit a job is stopped; what it has
                   measured so far stays. Default: none
  --out FOLDER     takes all results, the name of each DEVICE_DATE_COMMIT_NAME,
                   and what JOB printed, as JOB.log. Default: gpu-results
  --archive FILE   is FOLDER as .tar.gz, written anew after each job
  --shards N       processes for tests. Default: the number of processors
  --model FILE     a GGUF file, which the job model asks questions, too. It is
                   not packed. Where files must be small, take it in parts:
                   split --bytes=48M "\$(scripts/fetch_model.sh)" model.  # here
                   cat model.?? >model.gguf                              # there
  --rehearse       runs the command lines of the jobs model and papers with a
                   tiny model on the CPU, without a GPU: figures mean nothing

At the end there is a table of all jobs, and summary.json in FOLDER: ok, FAILED,
stopped at the limit, up to date, not started. Exit status: 0 if all jobs
succeeded or are up to date, 1 otherwise, 2 for a wrong command line.
HELP
}

die() {
  echo "gpu.sh: $*" >&2
  exit 1
}

wrong_usage() {
  echo "gpu.sh: $*" >&2
  echo "More: gpu.sh --help" >&2
  exit 2
}

# Ends the script unless the value of an option is a file.
need_file() {
  [[ -f ${2:-} ]] || wrong_usage "$1: expected a file, got '${2:-}'"
}

# Prints the hash of the files below some paths of the checkout, as they are on
# the disk, or "unknown" without git.
source_hash() {
  local files
  files=$(git ls-files --cached --others --exclude-standard -- "$@" 2>/dev/null |
    LC_ALL=C sort --unique |
    while IFS= read -r file; do if [[ -f ${file} ]]; then echo "${file}"; fi; done)
  if [[ -z ${files} ]]; then
    echo unknown
    return
  fi
  paste <(git hash-object --stdin-paths <<<"${files}") - <<<"${files}" |
    sha256sum | cut -c1-16
}

# Prints a line for each job: its name, the hash of what it measures, and the
# devices of which bench/results has a result with this hash.
list_jobs() {
  local job sources hash file
  local -A hashes
  for job in "${job_names[@]}"; do
    sources=${job_sources[${job}]}
    # shellcheck disable=SC2086  # Several paths.
    hash=${hashes[${sources}]:-$(set -f && source_hash ${sources})}
    hashes[${sources}]=${hash}
    printf '%s %s' "${job}" "${hash}"
    for file in bench/results/*_*_*_"${job}".source; do
      if [[ -f ${file} && ${hash} != unknown && $(<"${file}") == "${hash}" ]]; then
        file=${file##*/}
        printf ' %s' "${file%%_*}"
      fi
    done
    printf '\n'
  done
}

# Prints the commit of the checkout. Changes that are not committed are named.
name_commit() {
  local commit changes
  commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
  changes=$(git status --porcelain 2>/dev/null) || true
  echo "${commit}${changes:+-dirty}"
}

pack() {
  local output=build/${bundle}.tar.xz built='' wheel='' trace=''
  local -a lengths=()
  cd "${root}"
  while (($# > 0)); do
    case "$1" in
      --output)
        (($# >= 2)) || wrong_usage "--output needs a file"
        output=$2
        ;;
      --built)
        [[ -x ${2:-}/bin/${programs[0]} ]] || wrong_usage \
          "--built: expected a build with CUDA, '${2:-}' has no bin/${programs[0]}"
        built=$2
        ;;
      --wheel)
        [[ ${2:-} == *.whl && -f $2 ]] ||
          wrong_usage "--wheel: expected a wheel, got '${2:-}'"
        [[ $2 == *-abi3-* ]] ||
          echo "gpu.sh: $2 works with the Python of its name alone" >&2
        wheel=$2
        ;;
      --lengths)
        need_file "$@"
        shift
        while [[ -f ${1:-} ]]; do
          model_of_lengths "$1" >/dev/null || wrong_usage \
            "--lengths: expected a name that begins with one of" \
            "${!model_shapes[*]}, got '$1'"
          lengths+=("$1")
          shift
        done
        continue
        ;;
      --trace)
        need_file "$@"
        [[ $2 == *.jsonl || $2 == *.csv ]] ||
          wrong_usage "--trace: expected .jsonl or .csv, got '$2'"
        trace=$2
        ;;
      *) wrong_usage "pack: unknown argument: $1" ;;
    esac
    shift 2
  done
  if [[ -z ${built} ]]; then
    built=build/release
    cmake --preset release -DBLOCKMGR_CUDA=ON "-DBLOCKMGR_CUDA_TARGETS=80;90;100" \
      >/dev/null
    cmake --build --preset release --parallel "$(nproc)" --target "${programs[@]}"
  fi

  temporary=$(mktemp --directory)
  trap 'rm -rf "${temporary}"' EXIT
  local folder=${temporary}/${bundle}
  mkdir -p "${folder}/bin" "${folder}/lib"
  local program
  for program in "${programs[@]}"; do
    strip -o "${folder}/bin/${program}" "${built}/bin/${program}"
  done
  local -a binaries=("${programs[@]/#/${built}/bin/}")
  if [[ -n ${wheel} ]]; then
    python3 -m zipfile --extract "${wheel}" "${folder}/python"
    binaries+=("${folder}"/python/blockmgr/_core*.so)
    mkdir -p "${folder}/tests/python/device" "${folder}/docs"
    cp tests/python/device_tensors.py "${folder}/tests/python/"
    cp tests/python/device/*.py "${folder}/tests/python/device/"
    cp docs/python.md "${folder}/docs/"
  fi
  # Libraries of the system (loader, C, C++) and of the driver stay out: newer
  # ones will do.
  local binary
  for binary in "${binaries[@]}"; do ldd "${binary}"; done |
    awk '$3 ~ /^\// { print $3 }' | sort -u |
    { grep --extended-regexp --invert-match \
      '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|cuda))\.so[^/]*$' ||
      true; } |
    xargs --no-run-if-empty cp --dereference --target-directory="${folder}/lib"
  cp scripts/gpu.sh scripts/gpu_jobs.sh "${folder}/"
  cp "${scripts_of_jobs[@]}" "${folder}/bin/"
  if ((${#lengths[@]} > 0)); then
    mkdir "${folder}/lengths"
    cp "${lengths[@]}" "${folder}/lengths/"
  fi
  if [[ -n ${trace} ]]; then cp "${trace}" "${folder}/trace.${trace##*.}"; fi
  name_commit >"${folder}/commit"
  list_jobs >"${folder}/jobs.txt"
  mkdir -p "$(dirname "${output}")"
  tar -C "${temporary}" -cf - "${bundle}" | xz -3 --threads=0 >"${output}"
  awk 'NF > 2 { print "up to date:", $0 }' "${folder}/jobs.txt"
  echo "$(du -h "${output}" | cut -f1) ${output}, commit $(<"${folder}/commit")"
}

# Prints the name of this machine's GPU as file names have it.
name_device() {
  local name
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null |
    head --lines=1) || true
  name=${name,,}
  name=${name#nvidia }
  name=${name//[^a-z0-9.]/-}
  echo "${name:-no-gpu}"
}

# Writes the results so far: job, result and seconds of each in `rows`.
write_summary() {
  local row job result seconds comma=
  {
    printf '{\n  "device": "%s",\n  "date": "%s",\n  "commit": "%s",\n' \
      "${device}" "${date}" "${commit}"
    printf '  "time_limit_s": %s,\n  "seconds": %d,\n  "jobs": [' \
      "${time_limit:-null}" "${SECONDS}"
    for row in "${rows[@]}"; do
      IFS='|' read -r job result seconds <<<"${row}"
      printf '%s\n    {"job": "%s", "result": "%s", "seconds": %d}' "${comma}" \
        "${job}" "${result}" "${seconds}"
      comma=,
    done
    printf '\n  ]\n}\n'
  } >"${out}/summary.json"
  if [[ -n ${archive} ]]; then
    tar -C "$(dirname "${out}")" --exclude="${archive##*/}*" \
      -czf "${archive}.part" "$(basename "${out}")" &&
      mv "${archive}.part" "${archive}" || echo "--archive: not written"
  fi
}

# Whether this device has a result of the sources that a job measures.
is_up_to_date() {
  awk -v job="$1" -v device="${device}" \
    '$1 == job { for (i = 3; i <= NF; ++i) if ($i == device) found = 1 }
     END { exit !found }' <<<"${listed}"
}

# Runs a job until the seconds are over; 0: without a limit. Sets `result`.
run_limited() {
  local job=$1 limit=$2 status=0 until=$((SECONDS + $2))
  exec 3> >(exec tee "${out}/${job}.log")
  local log=$!
  # The job begins a process group.
  timeout --kill-after="${grace}" "${limit}" "${here}/gpu.sh" job "${job}" \
    </dev/null >&3 2>&1 3>&- &
  running=$!
  wait "${running}" || status=$?
  # A job that was killed may have left processes.
  kill -KILL -- "-${running}" 2>/dev/null || true
  running=''
  exec 3>&-
  wait "${log}" || true
  result=ok
  if ((status != 0 && limit > 0 && SECONDS >= until)); then
    result="stopped at the limit"
  elif ((status != 0)); then
    result=FAILED
  fi
}

run() {
  local -a named=()
  archive='' time_limit='' built='' out=gpu-results shards='' model='' rehearse=''
  while (($# > 0)); do
    case "$1" in
      --time-limit | --shards)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] ||
          wrong_usage "$1: expected a number above 0, got '${2:-}'"
        if [[ $1 == --shards ]]; then shards=$2; else time_limit=$2; fi
        shift
        ;;
      --out | --archive)
        (($# >= 2)) || wrong_usage "$1 needs a path"
        if [[ $1 == --out ]]; then out=$2; else archive=$(realpath -m "$2"); fi
        shift
        ;;
      --model)
        need_file "$@"
        model=$(realpath "$2")
        shift
        ;;
      --built)
        ((!bundled)) || wrong_usage "--built: a bundle has its programs"
        [[ -x ${2:-}/bin/blockmgr-bench ]] || wrong_usage \
          "--built: expected a build folder, '${2:-}' has no bin/blockmgr-bench"
        built=$(realpath "$2")
        shift
        ;;
      --rehearse) rehearse=1 ;;
      *)
        [[ " ${job_names[*]} " == *" $1 "* ]] ||
          wrong_usage "run: unknown argument: $1"
        named+=("$1")
        ;;
    esac
    shift
  done
  if ((!bundled)); then built=${built:-${root}/build/dev}; fi
  bin=$(realpath -m "${built:-${root}}/bin")
  [[ -x ${bin}/blockmgr-bench ]] || die "no programs: ${bin} has no blockmgr-bench"
  mkdir -p "${out}"
  out=$(realpath "${out}")
  shards=${shards:-$(nproc)}
  device=$(name_device)
  if [[ -n ${rehearse} ]]; then device=rehearsal; fi
  date=$(date --utc +%F)
  cd "${root}"
  if ((bundled)); then
    listed=$(<jobs.txt)
    commit=$(<commit)
  else
    listed=$(list_jobs)
    commit=$(name_commit)
  fi
  local short=${commit:0:7}
  if [[ ${commit} == *-dirty ]]; then short+=-dirty; fi
  results=${out}/${device}_${date}_${short}_
  export bin out results shards model rehearse
  run_jobs "${named[@]}"
}

# Runs the named jobs, or all that are not up to date, and says how they ended.
run_jobs() {
  local -a jobs=("$@")
  if ((${#jobs[@]} == 0)); then jobs=("${job_names[@]}"); fi
  local job began left failed=0
  local -a rows=()
  running=''
  trap 'kill "${running}" 2>/dev/null || true' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  for job in "${jobs[@]}"; do
    began=${SECONDS}
    left=$((${time_limit:-1000000} - SECONDS - grace))
    if (($# == 0)) && is_up_to_date "${job}"; then
      result="up to date"
    elif ((left < job_minimum["${job}"])); then
      result="not started: ${left} s left, takes at least ${job_minimum[${job}]}"
    else
      echo "== ${job}"
      if [[ -z ${time_limit} ]]; then left=0; fi
      run_limited "${job}" "${left}"
      if [[ ${result} == ok && -z ${rehearse} ]]; then
        awk -v job="${job}" '$1 == job { print $2 }' <<<"${listed}" \
          >"${results}${job}.source"
      fi
    fi
    if [[ ${result} != ok && ${result} != "up to date" ]]; then failed=1; fi
    rows+=("${job}|${result}|$((SECONDS - began))")
    write_summary
  done
  echo "== ${device}, ${commit}, ${SECONDS} s"
  for job in "${rows[@]}"; do
    IFS='|' read -r job result began <<<"${job}"
    echo "gpu.sh: ${job}: ${result}, ${began} s"
  done
  exit "${failed}"
}

case "${1:-}" in
  -h | --help) usage ;;
  pack | run)
    if [[ ${2:-} == -h || ${2:-} == --help ]]; then
      usage
    elif [[ $1 == pack ]] && ((bundled)); then
      wrong_usage "pack: expected a checkout, this is a bundle"
    else
      "$@"
    fi
    ;;
  # A job, in a process of its own.
  job) run_job "$2" ;;
  "") wrong_usage "expected pack or run" ;;
  *) wrong_usage "expected pack or run, got '$1'" ;;
esac
