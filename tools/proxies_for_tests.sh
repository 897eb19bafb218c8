#!/usr/bin/env bash
# Debian's nginx and haproxy in a folder of their own, for proxy_e2e_test: unpacked and not installed, since an installed
# nginx begins to serve on port 80. Wants no root. Where it cannot be done the test is skipped, which says so.
set -uo pipefail
folder=$1

command -v nginx >/dev/null && command -v haproxy >/dev/null && exit 0
[ -x "$folder/usr/sbin/nginx" ] && [ -x "$folder/usr/sbin/haproxy" ] && exit 0
mkdir -p "$folder" && cd "$folder" &&
  packages=$(apt-get -qq --simulate install --no-install-recommends nginx haproxy | sed -n 's/^Inst \([^ ]*\).*/\1/p') &&
  apt-get -qq download $packages &&
  for package in *.deb; do dpkg-deb --extract "$package" . || exit; done && exit 0
echo "proxies_for_tests: nginx and haproxy could not be had; their test will be SKIPPED" >&2
