#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need, and those it is given; does nothing when they
# are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build make pkg-config
  libopenmpi-dev openmpi-bin openssh-client
  libcpp-httplib-dev nlohmann-json3-dev libyaml-cpp-dev libfmt-dev libpcre2-dev libutf8proc-dev libgtest-dev libbenchmark-dev libboost-context-dev
  libssl-dev openssl
  python3 python3-venv
  "$@"
)

fail() {
  echo "setup: $*" >&2
  exit 1
}

install_missing() {
  local missing=() sudo=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "need root or sudo to install: ${missing[*]}"
    sudo=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

[ "$(uname -s)" = Linux ] || fail "$(uname -s) is not supported: Outrider needs Linux"
if command -v apt-get >/dev/null; then
  install_missing
else
  # Whoever has installed them by hand goes on.
  echo "setup: there is no apt-get here; what Debian calls ${packages[*]} must be there" >&2
fi
version=$(cmake --version | sed -n '1s/^cmake version //p') || fail "cmake 3.25 or later is needed"
printf '3.25\n%s\n' "$version" | sort -VC ||
  fail "cmake $version is too old, 3.25 or later is needed: pip install cmake (with python3-pip), then again"
