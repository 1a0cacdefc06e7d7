#!/usr/bin/env bash
# Builds the Python package and runs its tests. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: scripts/python.sh [OPTION..]

Makes build/python/venv, installs the pinned packages of python/requirements.txt
there (from the package index), builds the wheel into it and runs tests/python.

Options:
  --build-tree FOLDER  link the libraries that this build folder has, for example
                       build/dev, and compile without optimisation; without it,
                       the libraries are compiled, as `pip install .` does. Runs
                       tests/python/device, too: blockmgr.cuda on the emulator
                       of the CUDA kernels, and on the interpreter of compiled
                       ones if the folder has it (BLOCKMGR_TEST_PTX)
  --types              check the examples against the type stubs, too (mypy)
  --torch              run tests/python/nightly, too, with PyTorch and a language
                       model, in build/python/torch_venv (fetches some GB). Needs
                       the programs blockmgrd and blockmgr-engine. With
                       --build-tree also nano_engine.py on emulated CUDA kernels
  -h, --help           print this

Environment with --torch:
  BLOCKMGR_BIN=FOLDER  where the programs are (default: build/release/bin)
  BLOCKMGR_MODEL=FILE  see scripts/fetch_model.sh --help
HELP
}

build_tree=
types=0
torch=0
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --build-tree)
      [[ -f ${2:-}/blockmgr_libraries.cmake ]] || {
        echo "python.sh: no build folder of blockmgr: '${2:-}'" >&2
        exit 2
      }
      build_tree=$(realpath "$2")
      shift
      ;;
    --types) types=1 ;;
    --torch) torch=1 ;;
    *)
      echo "python.sh: unknown argument: $1 (see scripts/python.sh --help)" >&2
      exit 2
      ;;
  esac
  shift
done

# make_venv FOLDER FILE..: a venv with the packages of these files of requirements.
make_venv() {
  local venv=$1 file
  shift
  if cat "$@" | cmp --silent - "${venv}/requirements.txt"; then return; fi
  rm --force --recursive "${venv}"
  python3 -m venv "${venv}"
  local options=()
  for file in "$@"; do options+=(--requirement "${file}"); done
  if ! "${venv}/bin/pip" install --quiet --disable-pip-version-check \
    "${options[@]}"; then
    echo "python.sh: could not fetch the packages of $*" >&2
    exit 1
  fi
  cat "$@" >"${venv}/requirements.txt"
}

# install_wheel VENV
install_wheel() {
  "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    --force-reinstall "${wheels}"/*.whl
}

venv=build/python/venv
wheels=build/python/wheels
make_venv "${venv}" python/requirements.txt
settings=()
if [[ -n ${build_tree} ]]; then
  settings=(-Cbuild-dir=build/python/tree
    -Ccmake.define.BLOCKMGR_BUILD_TREE="${build_tree}"
    -Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0)
fi
rm --force --recursive "${wheels}"
"${venv}/bin/pip" wheel --quiet --disable-pip-version-check \
  --no-build-isolation --no-deps --wheel-dir "${wheels}" "${settings[@]}" .
install_wheel "${venv}"
"${venv}/bin/python" -m pytest --quiet tests/python
for device in emulator interpreter; do
  if [[ -n ${build_tree} && -n $(find build/python/tree -name "_${device}.*so") ]]; then
    BLOCKMGR_TEST_MODULES=build/python/tree BLOCKMGR_TEST_DEVICE=${device} \
      "${venv}/bin/python" -m pytest --quiet tests/python/device
  fi
done
if ((types)); then
  "${venv}/bin/pip" install --quiet --disable-pip-version-check mypy==1.18.2
  # PyTorch and the like are not there.
  "${venv}/bin/python" -m mypy --check-untyped-defs --ignore-missing-imports \
    examples/python/embed.py examples/python/nano_engine.py \
    examples/python/nano_kernels.py python/bench/step.py
fi
if ((torch)); then
  make_venv build/python/torch_venv python/requirements.txt \
    examples/python/requirements.txt tests/python/nightly/requirements.txt
  install_wheel build/python/torch_venv
  build/python/torch_venv/bin/python -m pytest --quiet tests/python/nightly
  if [[ -n ${build_tree} && -n $(find build/python/tree -name "_emulator.*so") ]]; then
    BLOCKMGR_TEST_MODULES=build/python/tree build/python/torch_venv/bin/python \
      -m pytest --quiet tests/python/nightly/test_nano_engine.py
  fi
fi
