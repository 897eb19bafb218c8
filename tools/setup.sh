#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need; does nothing when they are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build make pkg-config
  libopenmpi-dev openmpi-bin openssh-client
  libcpp-httplib-dev nlohmann-json3-dev libyaml-cpp-dev libfmt-dev libpcre2-dev libutf8proc-dev libgtest-dev libboost-context-dev
  python3 python3-venv
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
