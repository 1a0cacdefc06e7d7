#!/usr/bin/env bash
# Packs what tests and measures the CUDA kernels elsewhere. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly bundle=blockmgr-gpu
readonly programs=(kernels_gpu_test bench_gpu_test e2e_gpu_test blockmgr-bench
  blockmgr-engine blockmgrd)

usage() {
  cat <<HELP
Usage: scripts/pack_gpu.sh [--output FILE] [--built FOLDER] [--wheel FILE]

Packs the programs that test and measure the CUDA kernels, and the libraries
that they need, for a machine that has a GPU and its driver, a distribution as
old as this one or newer, and neither compilers nor packages. Builds them first,
in build/dev, or takes them from FOLDER as they are. Writes
build/${bundle}.tar.xz, or FILE. There:

  tar -xf ${bundle}.tar.xz && ${bundle}/run.sh --help

With --wheel also packs the Python package of this file, built with the CUDA
kernels (pip wheel .), and the tests of blockmgr.cuda. They need the Python that
the wheel is for, numpy and pytest there.

A model's file, which run.sh can ask questions, is not packed. Where files must
be small, take it there in parts:

  split --bytes=48M "\$(scripts/fetch_model.sh)" model.     # here
  cat model.?? >model.gguf                                  # there
HELP
}

die() {
  echo "pack_gpu.sh: $*" >&2
  exit 1
}

output=build/${bundle}.tar.xz
built=
wheel=
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --output)
      (($# >= 2)) || die "--output needs a file"
      output=$2
      shift
      ;;
    --built)
      (($# >= 2)) || die "--built needs a folder"
      built=$2
      [[ -x ${built}/bin/${programs[0]} ]] ||
        die "--built: expected a build with CUDA, ${built} has no bin/${programs[0]}"
      shift
      ;;
    --wheel)
      [[ ${2:-} == *.whl && -f $2 ]] || die "--wheel: expected a wheel, got '${2:-}'"
      wheel=$2
      shift
      ;;
    *) die "unknown argument: $1 (see scripts/pack_gpu.sh --help)" ;;
  esac
  shift
done

if [[ -z ${built} ]]; then
  built=build/dev
  cmake --preset dev -DBLOCKMGR_CUDA=ON "-DBLOCKMGR_CUDA_TARGETS=80;90;100" \
    >/dev/null
  cmake --build --preset dev --parallel "$(nproc)" --target "${programs[@]}"
fi

folder=$(mktemp --directory)
trap 'rm -rf "${folder}"' EXIT
mkdir -p "${folder}/${bundle}/bin" "${folder}/${bundle}/lib"
for program in "${programs[@]}"; do
  strip -o "${folder}/${bundle}/bin/${program}" "${built}/bin/${program}"
done
binaries=("${programs[@]/#/${built}/bin/}")
if [[ -n ${wheel} ]]; then
  python3 -m zipfile --extract "${wheel}" "${folder}/${bundle}/python"
  binaries+=("${folder}/${bundle}"/python/blockmgr/_core*.so)
  mkdir -p "${folder}/${bundle}/tests/python/device" "${folder}/${bundle}/docs"
  cp tests/python/device_tensors.py "${folder}/${bundle}/tests/python/"
  cp tests/python/device/*.py "${folder}/${bundle}/tests/python/device/"
  cp docs/python.md "${folder}/${bundle}/docs/"
fi
# All but what is of one piece with the system (the loader, the libraries of C and
# C++: one that is newer than this one's will do) and the driver.
for binary in "${binaries[@]}"; do ldd "${binary}"; done |
  awk '$3 ~ /^\// { print $3 }' | sort -u |
  grep --extended-regexp --invert-match \
    '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|cuda))\.so[^/]*$' |
  xargs cp --dereference --target-directory="${folder}/${bundle}/lib"
cp scripts/run_gpu.sh "${folder}/${bundle}/run.sh"
cp bench/compare_pytorch.py tests/kernels/cuda/sanitize_gpu_tests.py \
  "${folder}/${bundle}/bin/"
git rev-parse HEAD >"${folder}/${bundle}/commit" 2>/dev/null || true
mkdir -p "$(dirname "${output}")"
tar -C "${folder}" -cf - "${bundle}" | xz -3 --threads=0 >"${output}"
echo "$(du -h "${output}" | cut -f1) ${output}"
