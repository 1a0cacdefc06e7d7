#!/usr/bin/env bash
# Tests blockmgr.hf with torch, transformers and kvpress. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: scripts/python_hf.sh [OPTION..]

Makes a venv, installs the pinned packages of python/requirements-hf.txt there
(from the package index, some GB), builds the wheel into it and runs
tests/python_hf.

Options:
  --build-tree FOLDER  link the libraries that this build folder has, for example
                       build/dev; without it, the libraries are compiled. Runs
                       tests/python_hf/device, too: the CUDA kernels on their
                       emulator
  --venv FOLDER        the venv (default: build/python/hf)
  -h, --help           print this
HELP
}

build_tree=
venv=build/python/hf
while (($# > 0)); do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --build-tree)
      [[ -f ${2:-}/blockmgr_libraries.cmake ]] || {
        echo "python_hf.sh: no build folder of blockmgr: '${2:-}'" >&2
        exit 2
      }
      build_tree=$(realpath "$2")
      shift
      ;;
    --venv)
      venv=${2:?--venv: a folder is missing}
      shift
      ;;
    *)
      echo "python_hf.sh: unknown argument: $1 (see scripts/python_hf.sh --help)" >&2
      exit 2
      ;;
  esac
  shift
done

requirements=python/requirements-hf.txt
if ! cmp --silent "${requirements}" "${venv}/requirements.txt"; then
  [[ -d ${venv} ]] || python3 -m venv "${venv}"
  if ! "${venv}/bin/pip" install --quiet --disable-pip-version-check \
    --requirement "${requirements}"; then
    echo "python_hf.sh: could not fetch the packages of ${requirements}," \
      "nothing was tested" >&2
    exit 1
  fi
  cp "${requirements}" "${venv}/requirements.txt"
fi

settings=()
if [[ -n ${build_tree} ]]; then
  settings=(-Cbuild-dir=build/python/hf-tree
    -Ccmake.define.BLOCKMGR_BUILD_TREE="${build_tree}"
    -Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0)
fi
"${venv}/bin/pip" install --quiet --disable-pip-version-check \
  --no-build-isolation --no-deps --force-reinstall "${settings[@]}" .
"${venv}/bin/python" -m pytest --quiet tests/python_hf
if [[ -n ${build_tree} && -n $(find build/python/hf-tree -name "_emulator.*so") ]]; then
  BLOCKMGR_TEST_MODULES=build/python/hf-tree \
    "${venv}/bin/python" -m pytest --quiet tests/python_hf/device
fi
