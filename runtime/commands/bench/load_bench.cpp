// bench load: how long a model takes until it can be run, against reading its files.
// One process, one rank; what is compared is done in turns.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"
#include "runtime/base/log.h"
#include "runtime/base/telemetry/process_memory.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/ranks/loading/model_loader.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;

struct LoadBenchOptions {
  int32_t num_turns = 7;
  bool cold = false;
};

std::vector<Option> load_options(LoadBenchOptions* options) {
  return {integer_option("repeat", &options->num_turns, 1, 1000, "turns of reading and loading"),
          flag_option("cold",
                      &options->cold,
                      "before each, ask the system to forget what it has of the files")};
}

// The weight files of a folder.
class ModelFiles {
 public:
  explicit ModelFiles(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    if (paths.empty()) throw Error(fmt::format("{}: has no .safetensors files", folder.string()));
    for (const auto& path : paths) {
      files_.emplace_back(path);
      num_bytes_ += files_.back().size_bytes();
    }
  }

  uint64_t num_bytes() const { return num_bytes_; }
  void forget() const {
    for (const ReadOnlyFile& file : files_) file.forget();
  }

  // Reads everything in pieces that threads take one by one: each to its place in `out`, or with
  // null all to one small buffer a thread.
  void read(std::byte* out, int num_threads) const {
    std::atomic<uint64_t> next{0};
    std::exception_ptr failure;
    std::mutex mutex;
    const auto work = [&] {
      try {
        std::vector<std::byte> buffer(out == nullptr ? kPieceBytes : 0);
        for (uint64_t at = next.fetch_add(kPieceBytes); at < num_bytes_;
             at = next.fetch_add(kPieceBytes)) {
          read_piece(at, out == nullptr ? buffer.data() : out + at);
        }
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        failure = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (int t = 1; t < num_threads; ++t) helpers.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // kPieceBytes of all files, one behind the other; fewer at the end.
  void read_piece(uint64_t at, std::byte* out) const {
    uint64_t left = std::min<uint64_t>(kPieceBytes, num_bytes_ - at);
    for (const ReadOnlyFile& file : files_) {
      if (at >= file.size_bytes()) {
        at -= file.size_bytes();
        continue;
      }
      const uint64_t count = std::min(left, file.size_bytes() - at);
      file.read_at(at, out, count);
      out += count;
      left -= count;
      at = 0;
      if (left == 0) return;
    }
  }

  std::vector<ReadOnlyFile> files_;
  uint64_t num_bytes_ = 0;
};

class LoadBench {
 public:
  LoadBench(const RunConfig& config, const LoadBenchOptions& options)
      : config_(config),
        options_(options),
        layout_(make_layout(config, 0)),
        files_(model_folder(config.model, Role::kTarget)),
        threads_(ops::plan_threads({.num_threads = config.threads, .cpu_bind = config.cpu_bind})) {}

  // Once untimed: what the process holds before it has had any other memory.
  void load_first() {
    const LoadedModel loaded = load();
    memory_ = loaded.model->memory();
    after_load_ = process_memory();
    huge_bytes_ = huge_page_bytes();
  }

  void measure() {
    Progress progress("load", options_.num_turns);
    run_in_turns(options_.num_turns,
                 {[&] { timed(&read_s_, [&] { files_.read(nullptr, threads_.num_threads); }); },
                  [&] {
                    ops::AlignedBytes to;
                    timed(&copy_s_, [&] {
                      to = ops::allocate_bytes(files_.num_bytes());
                      files_.read(to.get(), threads_.num_threads);
                    });
                  },
                  [&] {
                    LoadedModel loaded;
                    timed(&load_s_, [&] { loaded = load(); });
                  }},
                 &progress);
  }

  void fill(BenchReport* report) const;

 private:
  LoadedModel load() const { return load_target(config_, layout_, 0, threads_, make_solo_group()); }

  template <typename Work>
  void timed(std::vector<double>* seconds, const Work& work) const {
    if (options_.cold) files_.forget();
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds->push_back(took.count());
  }

  const RunConfig& config_;
  const LoadBenchOptions& options_;
  RankLayout layout_;
  ModelFiles files_;
  ops::ThreadPlan threads_;
  std::vector<double> read_s_, copy_s_, load_s_;
  Transformer::Memory memory_;
  ProcessMemory after_load_;
  int64_t huge_bytes_ = 0;
};

void LoadBench::fill(BenchReport* report) const {
  const double gigabytes = static_cast<double>(files_.num_bytes()) / 1e9;
  report->title = fmt::format("{}: {:.3f} GB, {} thread(s), {}",
                              config_.model,
                              gigabytes,
                              threads_.num_threads,
                              options_.cold ? "files forgotten before each" : "files in memory");
  BenchTable times{.title = "", .columns = {"", "seconds", "GB/s", "load / this"}, .rows = {}};
  const auto add = [&](const char* name, const std::vector<double>& seconds) {
    report->add_series(name, "s", seconds);
    const double middle = bootstrap_median(seconds).value;
    const Interval ratio =
        report->add_figure(fmt::format("load / {}", name), "", bootstrap_ratio(load_s_, seconds));
    times.rows.push_back({name,
                          fmt::format("{:.3f}", middle),
                          fmt::format("{:.2f}", gigabytes / middle),
                          interval_text(ratio, 2)});
  };
  add("read through a small buffer", read_s_);
  add("read into fresh memory", copy_s_);
  add("load", load_s_);
  report->tables.push_back(std::move(times));

  BenchTable held{"memory after the first load", {"", ""}, {}};
  const auto add_bytes = [&](const char* label, const char* name, auto num_bytes) {
    held.rows.push_back({label, fmt::format("{} MiB", num_bytes >> 20)});
    report->add_figure(name, "bytes", static_cast<double>(num_bytes));
  };
  add_bytes("weights", "weights", memory_.weights);
  add_bytes("KV, taken when used", "KV", memory_.kv);
  add_bytes("buffers, taken when used", "buffers", memory_.buffers);
  add_bytes("the process holds", "resident after load", after_load_.resident_bytes);
  add_bytes("of it in huge pages", "in huge pages", huge_bytes_);
  add_bytes("and held at most", "resident at most", after_load_.peak_resident_bytes);
  report->tables.push_back(std::move(held));
}

}  // namespace

int load_bench(const CommandLine& line) {
  LoadBenchOptions options;
  BenchRun run("load", line, load_options(&options));
  if (has_no_files(run.config().model))
    throw Error("bench load reads files: give --model a folder");
  set_log_level(LogLevel::kWarning);  // or each turn would be logged
  LoadBench bench(run.config(), options);
  bench.load_first();
  bench.measure();
  BenchReport report = run.new_report({});
  bench.fill(&report);
  run.finish(std::move(report));
  return 0;
}

}  // namespace outrider
