#!/usr/bin/env bash
# The source of xgrammar, the grammar engine of structured output, into the folder that is given: once, checked by its
# hash. Without a network the build goes on without it, and such requests are refused with a sentence.
set -uo pipefail
folder=$1
version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80

[ -f "$folder/include/xgrammar/xgrammar.h" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fetch() {
  python3 -m venv "$scratch/venv" &&
    "$scratch/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar \
      --dest "$scratch" "xgrammar==$version" &&
    echo "$sha256  $scratch/xgrammar-$version.tar.gz" | sha256sum --check --quiet &&
    tar -xzf "$scratch/xgrammar-$version.tar.gz" -C "$scratch" &&
    mkdir -p "$(dirname "$folder")" && rm -rf "$folder" && mv "$scratch/xgrammar-$version" "$folder"
}

fetch && exit 0
echo "fetch_xgrammar: xgrammar $version could not be fetched; structured output will be REFUSED by this build" >&2
exit 0
