#!/usr/bin/env bash
# Runs what takes too long for .ci/run, and does not repeat what .ci/run does. To be
# run each night, and before a change counts as done. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: scripts/nightly.sh [--help]

Runs, with warnings as errors:
  dev-all    by clang, with asserts: thousands of seeds of the simulator, every
             case of random tests, a search for every planted bug,
             microbenchmarks, language models, clients and frontends of other
             projects
  release    the same tests, compiled by gcc as users compile, random tests with
             their usual cases; CUDA kernels for every architecture, and what
             nvcc makes of them, interpreted (ptx); packaging, an installation
             and projects that use it (label once)
  asan-all   tests of all programs under AddressSanitizer, also of whole lines
             (e2e), the load client, blockmgr-evict, CUDA kernels under the
             emulator, and thousands of seeds; random tests with a part of their
             cases, no language models
  fuzz       a minute of libFuzzer for every target
  traces     of 2,100 seeds, equal between gcc and clang
  python     the wheel with all its libraries, its tests, and the examples against
             its type stubs
  cuda       blockmgr.cuda on the emulator of the CUDA kernels, and on what nvcc
             makes of them, interpreted; with PyTorch an engine in Python, against
             the one in C++ on a language model (fetches pinned packages)
  python_hf  blockmgr.hf with torch, transformers and kvpress, also on the emulator
             of the CUDA kernels (fetches some GB of pinned packages)
  clang-tidy with its analyzer, on the files that changed, for an hour at most

Takes hours on two cores. Needs no GPU. The last line is "N passed, N failed".
HELP
}

case "${1:-}" in
  "") ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    echo "nightly.sh: unknown argument: $1 (see scripts/nightly.sh --help)" >&2
    exit 2
    ;;
esac

. scripts/checks.sh
run_tests --nightly --exclude-label once dev-all
run_tests --nightly --no-setup --exclude-label cases release
run_tests --nightly --no-setup --exclude-label 'once|cases|model' asan-all fuzz
check "equal traces of gcc and clang" same_traces dev-all release
check "Python package as pip installs it" scripts/python.sh --types
check "Python on CUDA kernels and PyTorch" scripts/python.sh --torch --build-tree build/release
check "blockmgr.hf with kvpress" scripts/python_hf.sh --build-tree build/release
run_tidy --seconds 3600
finish_checks
