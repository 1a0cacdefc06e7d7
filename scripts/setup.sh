#!/usr/bin/env bash
# Installs what blockmgr needs to build and test, on Debian 12 or Ubuntu 24.04.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/setup.sh [--help]

Installs the compilers, tools and libraries blockmgr needs, with apt, on Debian 12
or Ubuntu 24.04. Does nothing, and touches no network, when all of it is there.
Uses sudo when it is not run as root.
HELP
}

die() {
  echo "setup.sh: $*" >&2
  exit 1
}

# The libraries that libgrpc++-dev and libprotobuf-dev need (c-ares, re2,
# OpenSSL, zlib) come with them.
packages=(
  # compilers and tools
  build-essential g++ clang clang-tidy clang-format lld cmake ninja-build ccache
  curl git pkg-config python3
  # libraries
  libabsl-dev libboost-dev libboost-context-dev libgrpc++-dev libprotobuf-dev
  protobuf-compiler protobuf-compiler-grpc libhwy-dev libxxhash-dev
  libcli11-dev libspdlog-dev nlohmann-json3-dev libopenblas-dev libpcre2-dev
  libzip-dev prometheus-cpp-dev libzmq3-dev cppzmq-dev libmsgpack-cxx-dev
  # tests and benchmarks
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev python3-grpcio
  python3-pip python3-dev python3-venv python3-zmq python3-msgpack
)

# Installed where the distribution has them: clang's sanitizer runtimes are a
# package of their own in some releases and a part of clang in others.
optional_packages=(libclang-rt-dev)

is_installed() {
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) \
    == installed ]]
}

# Prints those of the optional packages that are known and not installed.
missing_optional() {
  local package
  for package in $(missing_of "${optional_packages[@]}"); do
    if apt-cache show "${package}" >/dev/null 2>&1; then echo "${package}"; fi
  done
}

# Prints those of the given packages that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    is_installed "${package}" || echo "${package}"
  done
}

check_distribution() {
  local supported="Debian 12 and Ubuntu 24.04 are supported"
  [[ -r /etc/os-release ]] || die "no /etc/os-release; ${supported}"
  local name
  name=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-unknown}")
  case "${name}" in
    "debian 12" | "ubuntu 24.04") ;;
    *) die "this is ${name}; ${supported}. Elsewhere, install what" \
      "corresponds to: ${packages[*]} and use scripts/test.sh --no-setup" ;;
  esac
}

main() {
  case "${1:-}" in
    "") ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) die "unknown argument: $1 (see scripts/setup.sh --help)" ;;
  esac

  check_distribution
  local missing
  mapfile -t missing < <(missing_of "${packages[@]}" && missing_optional)
  if ((${#missing[@]} == 0)); then
    echo "setup.sh: everything is installed"
    return
  fi

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "not root, and no sudo. As root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
  "${apt[@]}" update

  # Now that apt knows what there is.
  mapfile -t missing < <(missing_of "${packages[@]}" && missing_optional)
  echo "setup.sh: installing ${missing[*]}"
  "${apt[@]}" install --yes --no-install-recommends "${missing[@]}"
}

main "$@"
