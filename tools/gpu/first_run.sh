#!/usr/bin/env bash
# first_run.sh OUT_FOLDER [BUILD_FOLDER]: everything a machine with a GPU must be asked, in under nine minutes and in
# the order of importance: the GPU tests, our benchmarks, gpu_probe's questions, the PyTorch baseline, the tests with
# every kernel late, two processes on one GPU, assisted generation, the tests under compute-sanitizer. Needs the
# binaries of a build made anywhere (default: build-gpu-run, what tools/gpu/pack.sh made, else build) and nothing else:
# no network, no mpirun, no cmake; python3 with torch for the baseline. Each part has a time limit and a part that fails
# does not stop the others. FIRST_RUN_PARTS: some of "tests bench probe torch overlap pairs assisted memcheck racecheck",
# in this order. FIRST_RUN_BUDGET_S: 530. Leaves in OUT_FOLDER: first_run.md, first_run.json (gpu_probe's),
# baseline.json, bench.json, first_run.log. Exit code 3: no GPU.
set -uo pipefail

out=${1:?usage: first_run.sh OUT_FOLDER [BUILD_FOLDER]}
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build
[ -d "$root/build-gpu-run" ] && build=$root/build-gpu-run
build=${2:-$build}
parts=" ${FIRST_RUN_PARTS:-tests bench probe torch overlap pairs assisted memcheck racecheck} "
budget_s=${FIRST_RUN_BUDGET_S:-530}
mkdir -p "$out"
log=$out/first_run.log
page=$out/first_run.md
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
mkdir "$results/bench"
if [ -f "$build/pack.tar.gz" ]; then
  mkdir "$results/build"
  tar -C "$results/build" -xzf "$build/pack.tar.gz" || { echo "first_run: $build/pack.tar.gz is damaged" >&2; exit 2; }
  build=$results/build
fi
probe=$build/tools/gpu/probe/gpu_probe
: >"$log"

[ -x "$probe" ] || { echo "first_run: no $probe: build it (cmake --preset cpu where nvcc is)" >&2; exit 2; }
# OUTRIDER_SHARE: where the embedded pair lies; the binaries know only the folder they were built in.
export OUTRIDER_REQUIRE_GPU=1 OUTRIDER_SHARE=$root PYTHONUNBUFFERED=1
"$probe" device --out "$results/device" >/dev/null 2>"$results/device.log" || {
  cat "$results/device.log" >&2
  exit 3
}

# The tests of NCCL take it from where gpu_probe finds it, too.
if [ -z "${OUTRIDER_NCCL:-}" ]; then
  OUTRIDER_NCCL=$(python3 -c 'import glob, sys
found = {f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib/libnccl.so.2")}
print(min(found, key=lambda f: ("cu13" not in f, f)) if found else "")' 2>/dev/null)
  if [ -n "$OUTRIDER_NCCL" ]; then export OUTRIDER_NCCL; else unset OUTRIDER_NCCL; fi
fi

wanted() { [[ $parts == *" $1 "* ]]; }
# What we built finds its libraries in the pack; python must not.
ours() { part "$1" "$2" env LD_LIBRARY_PATH="$first$build/lib:${LD_LIBRARY_PATH:-}" "${@:3}"; }
first=  # folders searched before

left_s() { echo $((budget_s - SECONDS)); }

# part NAME LIMIT_S COMMAND...: runs it for at most LIMIT_S and at most what is left.
part() {
  local name=$1 limit=$2 start=$SECONDS code=0
  shift 2
  [ "$limit" -gt "$(left_s)" ] && limit=$(left_s)
  if [ "$limit" -lt 10 ]; then
    echo "| $name | not begun: no time left | |" >>"$page"
    return
  fi
  echo "=== $name (at most $limit s): $*" | tee -a "$log" >&2
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 || code=$?
  local word="exit code $code"
  case $code in 0) word=done ;; 77) word=skipped ;; 124 | 137) word="out of time" ;; esac
  echo "| $name | $word | $((SECONDS - start)) |" >>"$page"
}

{
  echo "# First GPU run"
  echo
  echo "$(date -u +%Y-%m-%d), $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
    head -1), commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)," \
    "command \`tools/gpu/first_run.sh\`"
  echo
  echo "| part | result | s |"
  echo "|---|---|---|"
} >"$page"

torch() { part "PyTorch, $1" "$2" python3 "$root/tools/gpu/torch_baseline.py" --json "$results/$3.json" "${@:4}"; }

# bench NAME LIMIT_S FILE KIND OPTIONS...: its tables go onto the page, its JSON into bench.json.
bench() {
  ours "outrider bench, $1" "$2" bash -o pipefail -c '"$@" | tee "$0"' "$results/bench/$3.txt" "$build/outrider" \
    bench "$4" --device cuda --json "$results/bench/$3.json" "${@:5}"
}

if wanted tests; then
  for test in "$build"/tests/gpu/*_gpu_test; do
    [ -x "$test" ] && ours "$(basename "$test")" 60 "$test"
  done
fi
if wanted bench; then
  curve=(--rows 2,4,5,8,9,16,17,32 --context 512 --repeat 10 --max-model-len 1024)
  bench "8B steps by rows" 60 8b_curve verify-curve --model synth:llama-3.1-8b "${curve[@]}"
  bench "1B steps by rows" 40 1b_curve verify-curve --model synth:llama-3.2-1b "${curve[@]}"
  bench "8B and its first layers as draft" 60 8b_pair decode --model synth:llama-3.1-8b --speculative-config.model \
    synth:llama-3.1-8b@2 --draft-lens 0,2,4,6 --num-prompts 2 --max-tokens 128 --max-model-len 1024
  bench "8B prompts" 60 8b_prompts prefill --model synth:llama-3.1-8b --lengths 128,512,2048 --repeat 5
  bench "the embedded pair" 30 embedded decode --config "$root/configs/bench.yaml" --num-prompts 4 --repeat 1
fi
wanted probe && ours "gpu_probe: what kernels must know" 230 "$probe" device bandwidth cublaslt launch_gap latency --out "$results/first"
if wanted torch; then
  torch "8B shapes" 130 8b --model 8b --budget-s 110
  torch "1B shapes" 100 1b --model 1b --budget-s 80
fi
if wanted overlap; then
  first=$build/late:
  for test in "$build"/tests/gpu/*_gpu_test; do
    [ -x "$test" ] && ours "$(basename "$test"), every kernel late" 30 "$test"
  done
  first=$build/unwaited:
  ours "control: found that norm does not wait for its predecessor" 30 bash -c \
    '"$0" --gtest_filter="GraphTest.*" | grep "FAILED.*GraphTest.OverlappingLaunches"' "$build/tests/gpu/device_gpu_test"
  first=
fi
wanted pairs && ours "gpu_probe: two processes" 110 "$probe" ipc nccl --out "$results/second"
wanted assisted && torch "assisted generation" 90 assisted --assisted --budget-s 70
for tool in memcheck racecheck; do
  wanted $tool || continue
  for test in "$build"/tests/gpu/*_gpu_test; do
    case $test in */colocated_gpu_test | */engine*_gpu_test | */transformer_gpu_test) continue ;; esac  # whole models: too long
    case $test in */many_ranks_gpu_test) continue ;; esac
    case $test in */device_group_gpu_test | */hierarchical_gpu_test) continue ;; esac  # launches wait for each other
    case $test in *_processes_gpu_test) continue ;; esac
    [ -x "$test" ] && ours "$(basename "$test") under $tool" 40 "$root/tools/gpu/sanitize.sh" "$tool" "$test"
  done
done

for table in "$results"/bench/*.txt; do
  [ -s "$table" ] && { echo; echo "## outrider bench: $(basename "$table" .txt)"; echo; echo '```'; cat "$table"; echo '```'; } >>"$page"
done
for folder in first second; do
  [ -f "$results/$folder/gpu_probe.md" ] && { echo; sed 's/^# GPU probe/# gpu_probe/' "$results/$folder/gpu_probe.md"; } >>"$page"
  cat "$results/$folder"/*.log >>"$log" 2>/dev/null
done
python3 - "$results" "$out" <<'PY' >>"$page" 2>>"$log"
import json, pathlib, sys
results, out = map(pathlib.Path, sys.argv[1:])


def load(path):  # what a part that was ended left may be half a file
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


probes = [probe for name in ("first", "second") for probe in load(results / name / "gpu_probe.json").get("probes", [])]
(out / "first_run.json").write_text(json.dumps({"probes": probes}, indent=1))
(out / "bench.json").write_text(json.dumps({path.stem: load(path) for path in sorted((results / "bench").glob("*.json"))},
                                           indent=1))
# What decides whether prompts want cuBLASLt (docs/gpu.md, Products).
blas = {key: value for probe in probes for key, value in probe.get("values", {}).items()}
ours = {figure["x"]: figure["value"] for figure in load(results / "bench/8b_prompts.json").get("figures", [])
        if figure["name"] == "in one step"}
if ours or any(key.startswith("prompt_8b_ms_") for key in blas):
    print("\n## Prompts of an 8B\n\n| rows | our whole step, ms | the layers' products by cuBLASLt, ms |\n|---|---|---|")
    for rows in (128, 512, 2048):
        step = f"{1e3 * rows / ours[rows]:.3f}" if rows in ours else "not measured"
        products = blas.get(f"prompt_8b_ms_{rows}")
        print(f"| {rows} | {step} | {'not measured' if products is None else f'{products:.3f}'} |")
baseline = [row for path in sorted(results.glob("*.json")) for row in load(path).get("rows", [])]
(out / "baseline.json").write_text(json.dumps(baseline, indent=1))
if baseline:
    print("\n## PyTorch\n\n| case | tokens/s | GB/s | what |\n|---|---|---|---|")
    for row in baseline:
        print(f"| {row['case']} | {row.get('tokens_per_s', '')} | {row.get('gb_per_s', '')} | {row['what']} |")
PY
cat "$page"
