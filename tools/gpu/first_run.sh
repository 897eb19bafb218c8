#!/usr/bin/env bash
# first_run.sh OUT_FOLDER [BUILD_FOLDER]: what a machine with a GPU must be asked, in the order of importance and in
# 530 s. Needs the binaries of a build made anywhere (default: build-gpu-run, what tools/gpu/pack.sh made,
# else build) and nothing else: no network, no mpirun, no cmake; python3 with torch for the baseline.
#   FIRST_RUN_PARTS      some of the parts in `all_parts` below, done in the order that stands there
#   FIRST_RUN_BUDGET_S   530
#   FIRST_RUN_KERNELS    folders with a liboutrider_cuda.so of tools/gpu/build_kernels.sh, measured beside the pack's own
# Each part is a process group with a time limit; a part that fails or hangs costs only itself. In OUT_FOLDER, as soon as
# a part has ended: first_run.md (the page), results.jsonl (one part a line), first_run.log (all that was said). Exit
# code 2: the binaries do not run; 3: gpu_probe says that there is no GPU; 4: the GPU does not answer any more.
set -uo pipefail

first_call="probe kernels decode shard pair profile tests ranks"
later_calls="torch prompts late assisted memcheck racecheck"
all_parts="$first_call $later_calls"

kernel_tests=(device rows product attention kv)
rank_tests=(device_group hierarchical many_ranks exchange_processes job_processes nccl_processes)  # threads, processes
model_tests=(colocated draft_chain engine engine_rules families transformer)

out=${1:?usage: first_run.sh OUT_FOLDER [BUILD_FOLDER]}
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build
[ -d "$root/build-gpu-run" ] && build=$root/build-gpu-run
build=${2:-$build}
parts=" ${FIRST_RUN_PARTS:-$first_call} "
budget_s=${FIRST_RUN_BUDGET_S:-530}
for word in $parts; do
  [[ " $all_parts " == *" $word "* ]] || { echo "first_run: no part is called '$word': $all_parts" >&2; exit 2; }
done

mkdir -p "$out"
log=$out/first_run.log
results=$(mktemp -d)
mkdir "$results/page"
running=
end() {  # also when it is told to stop
  [ -n "$running" ] && kill -KILL -- "-$running" 2>/dev/null
  rm -rf "$results"
}
trap end EXIT
trap 'exit 143' TERM INT HUP
: >"$log"
: >"$out/results.jsonl"

pack=$build/pack.tar.xz
if [ -f "$pack" ]; then
  mkdir "$results/build"
  # Python where there is no xz.
  tar -C "$results/build" -xJf "$pack" 2>/dev/null || python3 -m tarfile -e "$pack" "$results/build" >/dev/null 2>&1 ||
    { echo "first_run: $pack is damaged" >&2; exit 2; }
  build=$results/build
fi
probe=$build/tools/gpu/probe/gpu_probe
[ -x "$probe" ] || { echo "first_run: no $probe: build it (cmake --preset cpu where nvcc is)" >&2; exit 2; }
# OUTRIDER_SHARE: where the embedded pair lies; the binaries know only the folder they were built in.
export OUTRIDER_REQUIRE_GPU=1 OUTRIDER_SHARE=$root PYTHONUNBUFFERED=1
"$probe" device --out "$results/device" >/dev/null 2>"$results/device.log"
case $? in
  0) ;;
  3) cat "$results/device.log" >&2; exit 3 ;;
  *) echo "first_run: $probe does not start or fails, which says nothing of a GPU: $(tail -n 3 "$results/device.log")" >&2
     exit 2 ;;
esac

# The tests of NCCL take it from Python's wheels where the system has none.
if [ -z "${OUTRIDER_NCCL:-}" ]; then
  OUTRIDER_NCCL=$(python3 -c 'import glob, sys
found = {f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib/libnccl.so.2")}
print(min(found, key=lambda f: ("cu13" not in f, f)) if found else "")' 2>/dev/null)
  if [ -n "$OUTRIDER_NCCL" ]; then export OUTRIDER_NCCL; else unset OUTRIDER_NCCL; fi
fi

# ---- the page: its head, a line for each part, their tables

num_parts=0
publish() { cp "$1" "$out/.new" && mv -f "$out/.new" "$out/$2"; }  # never half a file, whenever we are killed
write_page() {
  cat "$results"/page/*.md >"$results/page.md"
  publish "$results/page.md" first_run.md
}
line() {  # line PART RESULT SECONDS
  echo "| $1 | $2 | $3 |" >>"$results/page/1.md"
}
# keep NAME FOLDER: what a part wrote there, table.txt or a probe's pages, and its JSON if it is whole.
keep() {
  local page json file
  page=$results/page/2_$(printf %03d "$num_parts").md
  if [ -s "$2/table.txt" ]; then
    { echo; echo "## $1"; echo; echo '```'; cat "$2/table.txt"; echo '```'; } >"$page"
  fi
  local pages=("$2"/*.md)  # of a probe
  [ -f "${pages[0]}" ] && { echo; cat "${pages[@]}"; } >>"$page"
  cat "$2"/*.log >>"$log" 2>/dev/null
  for file in "$2"/*.json; do
    json=$(python3 -m json.tool --compact "$file" 2>/dev/null) || continue  # half a file
    echo "{\"part\": \"$1\", \"result\": $json}" >>"$results/results.jsonl"
    publish "$results/results.jsonl" results.jsonl
  done
}
commit=$(cat "$build/COMMIT" 2>/dev/null || git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
gpu=$(timeout -k 1 10 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1)
{
  echo "# First GPU run"
  echo
  echo "$(date -u +%Y-%m-%d), $gpu, commit $commit, command \`tools/gpu/first_run.sh\`, parts$parts"
  echo
  echo "| part | result | s |"
  echo "|---|---|---|"
} >"$results/page/0.md"
write_page

# ---- parts

wanted() { [[ $parts == *" $1 "* ]]; }
left_s() { echo $((budget_s - SECONDS)); }
# A killed script takes its part with it: timeout hears of it and ends its process group.
with_us=()
setpriv --pdeathsig TERM true 2>/dev/null && with_us=(setpriv --pdeathsig TERM)
work=$results/work  # where a part writes its table and its JSON

# wait_for LIMIT_S: for $running. Sets code; 137 when it cannot be ended (in the driver), and goes on without it.
wait_for() {
  local tenth
  code=137
  for ((tenth = 0; tenth < 10 * $1; ++tenth)); do
    kill -0 "$running" 2>/dev/null || { wait "$running"; code=$?; break; }
    sleep 0.1
  done
}

# part NAME LIMIT_S COMMAND...: runs it for at most LIMIT_S and at most what is left.
part() {
  local name=$1 limit=$2 start=$SECONDS code word
  shift 2
  num_parts=$((num_parts + 1))
  [ "$limit" -gt "$(left_s)" ] && limit=$(left_s)
  if [ "$limit" -lt 10 ]; then
    line "$name" "not begun: no time left" ""
    write_page
    return
  fi
  echo "=== $name (at most $limit s): $*" | tee -a "$log" >&2
  rm -rf "$work"
  mkdir "$work"
  "${with_us[@]}" timeout -k 5 "$limit" "$@" >>"$log" 2>&1 &
  running=$!
  wait_for $((limit + 8))
  kill -KILL -- "-$running" 2>/dev/null  # whom it left behind
  running=
  word="exit code $code"
  case $code in 0) word="done" ;; 77) word=skipped ;; 124 | 137) word="out of time" ;; esac
  line "$name" "$word" "$((SECONDS - start))"
  keep "$name" "$work"
  write_page
  [ "$word" != "out of time" ] || check_gpu
}

check_gpu() {
  timeout -k 2 20 "$probe" device --out "$results/device" >/dev/null 2>&1 && return
  line "the GPU" "does not answer any more: no further part is begun" ""
  write_page
  cat "$out/first_run.md"
  exit 4
}

# What we built finds its libraries in the pack; python must not.
first=       # folders searched before
settings=()  # more of the environment
ours() { part "$1" "$2" env "LD_LIBRARY_PATH=$first$build/lib:${LD_LIBRARY_PATH:-}" "${settings[@]}" "${@:3}"; }
# What its standard output says goes onto the page.
shown() { ours "$1" "$2" bash -o pipefail -c '"$@" | tee "$0"' "$work/table.txt" "${@:3}"; }
bench() { shown "$1" "$2" "$program" bench "$3" --device cuda --json "$work/result.json" "${@:4}"; }
question() { ours "gpu_probe: $1" "$2" "$probe" $1 --out "$work"; }
torch() {
  part "PyTorch, $1" "$2" bash -o pipefail -c '"$@" | tee "$0"' "$work/table.txt" \
    python3 "$root/tools/gpu/torch_baseline.py" --json "$work/result.json" "${@:3}"
}
# a_test NAME LIMIT_S [REMARK COMMAND...]: COMMAND runs it; nothing where it was not built.
a_test() {
  local test=$build/tests/gpu/$1_gpu_test
  [ -x "$test" ] && ours "$1_gpu_test${3:-}" "$2" "${@:4}" "$test"
}
all_tests() { for test in "$build"/tests/gpu/*_gpu_test; do basename "$test" _gpu_test; done; }
is_one_of() { local name=$1; shift; [[ " $* " == *" $name "* ]]; }

# The program beside the pack's kernels, and beside each of the others.
programs=("$build/outrider")
names=("")
for folder in ${FIRST_RUN_KERNELS:-}; do
  name=$(basename "$folder")
  mkdir -p "$results/kernels/$name"
  cp "$build/outrider" "$folder/liboutrider_cuda.so" "$results/kernels/$name/" ||
    { echo "first_run: $folder has no liboutrider_cuda.so" >&2; exit 2; }
  programs+=("$results/kernels/$name/outrider")
  names+=(", kernels $name")
done
program=$build/outrider

curves() {
  local i overlap
  local curve=(--rows 1,2,4,5,8,9,16,17,32 --context 512 --repeat 10 --max-model-len 1024)
  for i in "${!programs[@]}"; do
    program=${programs[i]}
    for overlap in 1 0; do
      settings=("OUTRIDER_GPU_OVERLAP=$overlap")
      bench "1B steps by rows, overlap $overlap${names[i]}" 30 verify-curve --model synth:llama-3.2-1b "${curve[@]}"
      bench "8B steps by rows, overlap $overlap${names[i]}" 50 verify-curve --model synth:llama-3.1-8b "${curve[@]}"
    done
    settings=()
  done
  program=$build/outrider
  bench "1B decode" 30 decode --model synth:llama-3.2-1b --draft-lens 0 --num-prompts 2 --max-tokens 256 \
    --max-model-len 1024
}

profile() {
  local ncu
  ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
  [ -x "$ncu" ] || { line "a step of an 8B under ncu" "skipped: there is no ncu" ""; write_page; return; }
  # Past loading, the context and the first steps; a layer is seven or eight launches.
  shown "a step of an 8B under ncu" 70 "$ncu" --clock-control none --set basic --launch-skip 1200 --launch-count 20 \
    "$program" bench verify-curve --device cuda --model synth:llama-3.1-8b --rows 1 --context 512 --repeat 10 \
    --max-model-len 1024 --enforce-eager
}

if wanted probe; then
  for name in device bandwidth launch_gap; do question $name 70; done
fi
if wanted kernels; then
  for name in "${kernel_tests[@]}"; do a_test "$name" 30; done
fi
wanted decode && curves
wanted shard && shown "one rank's share of a 70B on 8" 40 "$program" plan --model synth:llama-3.1-70b --gpus 8 \
  --device cuda --tp-emulate 8
if wanted pair; then
  # Drafting while the target verifies, and in turns, where draft steps are chained.
  for mode in cache off; do
    bench "8B and its first layers as draft, async_drafting $mode" 50 decode --model synth:llama-3.1-8b \
      --speculative-config.model synth:llama-3.1-8b@2 --speculative-config.async-drafting "$mode" \
      --draft-lens 0,2,4,6 --num-prompts 2 --max-tokens 128 --max-model-len 1024
  done
  bench "the embedded pair" 30 decode --config "$root/configs/bench.yaml" --num-prompts 4 --repeat 1
fi
wanted profile && profile
if wanted tests; then
  for name in $(all_tests); do
    is_one_of "$name" "${kernel_tests[@]}" "${rank_tests[@]}" || a_test "$name" 60
  done
fi
if wanted ranks; then
  for name in "${rank_tests[@]}"; do a_test "$name" 150; done
fi

if wanted torch; then
  torch "8B shapes" 130 --model 8b --budget-s 110
  torch "1B shapes" 100 --model 1b --budget-s 80
fi
if wanted prompts; then
  bench "8B prompts" 60 prefill --model synth:llama-3.1-8b --lengths 128,512,2048 --repeat 5
fi
if wanted late; then
  first=$build/late:
  for name in $(all_tests); do a_test "$name" 30 ", every kernel late"; done
  first=$build/unwaited:
  ours "control: found that norm does not wait for its predecessor" 30 bash -c \
    '"$0" --gtest_filter="GraphTest.*" | grep "FAILED.*GraphTest.OverlappingLaunches"' "$build/tests/gpu/device_gpu_test"
  first=
fi
wanted assisted && torch "assisted generation" 90 --assisted --budget-s 70
for tool in memcheck racecheck; do
  wanted $tool || continue
  # Not whole models, which take too long, nor launches that wait for each other.
  for name in $(all_tests); do
    is_one_of "$name" "${model_tests[@]}" "${rank_tests[@]}" ||
      a_test "$name" 40 " under $tool" "$root/tools/gpu/sanitize.sh" "$tool"
  done
done
cat "$out/first_run.md"
