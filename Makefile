# Everything from a fresh Debian 12: each target does its own set-up.
#   make build   the program, at build/outrider
#   make demo    the embedded pair under mpirun: 2 target ranks, 1 draft rank, one request
#   make demo-faults  one stream goes on while its drafts are killed, stopped and replaced
#   make package  a Debian package, build/outrider_*.deb
#   make test    the whole test suite, warnings as errors
.PHONY: build demo demo-faults package test smoke setup clean

build: setup
	cmake --preset cpu
	cmake --build build --target outrider

demo: build
	python3 tools/demo.py

demo-faults: build
	python3 tools/demo_faults.py

package: build
	tools/setup.sh dpkg-dev file
	cd build && cpack -G DEB

test: setup
	cmake --preset cpu
	cmake --build build
	-tools/setup.sh chromium chromium-driver  # 300 MB; without them the chat page's test is skipped
	tools/python_for_tests.sh build/venv
	-tools/proxies_for_tests.sh build/proxies
	ctest --test-dir build --output-on-failure -j $$(nproc)

# The program without optimisation and with sanitizers: verify, served requests, a batch.
smoke: setup
	tools/smoke.sh

setup:
	tools/setup.sh
	tools/fetch_xgrammar.sh build/third_party/xgrammar

clean:
	rm -rf build build-*
