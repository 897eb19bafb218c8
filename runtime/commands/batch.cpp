// batch: a file of OpenAI batch lines through the same service as HTTP. Lines are checked before
// the model is loaded (batch/batch_lines.h), results are appended as they come
// (batch/result_file.h), and --resume skips what is already answered.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "http/service.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/batch/batch_lines.h"
#include "runtime/commands/batch/result_file.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/job/serving_resources.h"
#include "runtime/ranks/job/signals.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kMostWorkers = 256;
constexpr int kExitSomeFailed = 3;
constexpr int kExitStopped = 75;  // EX_TEMPFAIL: run again with --resume
constexpr auto kProgressInterval = std::chrono::seconds(5);
constexpr auto kRetrySlice = std::chrono::milliseconds(20);

struct BatchOptions {
  std::string input;
  std::string output;
  bool resume = false;
};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Lines whose requests find a place in the engine's queue at once; a larger line goes alone.
class Room {
 public:
  explicit Room(int num_requests) : num_free_(num_requests), size_(num_requests) {}

  void enter(int num_requests) {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return num_free_ >= std::min(num_requests, size_); });
    num_free_ -= num_requests;
  }
  void leave(int num_requests) {
    std::lock_guard lock(mutex_);
    num_free_ += num_requests;
    freed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int num_free_;
  const int size_;
};

class BatchRun {
 public:
  // num_places: requests of the engine's queue.
  BatchRun(OpenAiService& service,
           ResultFile& results,
           std::vector<BatchLine> lines,
           int num_places)
      : service_(service), results_(results), lines_(std::move(lines)), room_(num_places) {}

  // Returns the exit code.
  int run(int num_workers) {
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) workers.emplace_back([this] { work(); });
    watch();
    for (std::thread& worker : workers) worker.join();
    print_progress(true);
    if (!first_failure_.empty())
      fmt::print(stderr, "batch: the first failure is {}\n", first_failure_);
    if (!problem_.empty()) throw Error(problem_);
    results_.finish();
    if (num_done_ < lines_.size()) return kExitStopped;
    return num_failed_ > 0 ? kExitSomeFailed : 0;
  }

 private:
  void work() {
    while (!stopping_) {
      const size_t index = next_++;
      if (index >= lines_.size()) return;
      const BatchLine& line = lines_[index];
      room_.enter(line.num_requests);
      try {
        if (answer(line)) ++num_done_;
      } catch (const std::exception& error) {
        std::lock_guard lock(mutex_);
        if (problem_.empty()) problem_ = error.what();
        cut_off_ = true;
        stopping_ = true;
      }
      room_.leave(line.num_requests);
    }
  }

  // False when the run was stopped first: then nothing is written.
  bool answer(const BatchLine& line) {
    const std::optional<ServiceReply> reply = ask(line);
    if (!reply) return false;
    const Json body = Json::parse(reply->body);
    BatchResult result{.custom_id = line.custom_id, .status = reply->status, .body = dump(body)};
    if (reply->status != 200) {
      const Json error = body.is_object() && body.contains("error") ? body["error"] : body;
      result.error = dump(error);
      record_failure(line, error);
    } else if (body.contains("usage")) {
      const Json& usage = body["usage"];
      num_tokens_ += usage.value("completion_tokens", usage.value("output_tokens", int64_t{0}));
    }
    results_.append(result);
    return true;
  }

  // While there is no room for the line it is asked again: that is no answer to it.
  std::optional<ServiceReply> ask(const BatchLine& line) {
    while (!stopping_) {
      ServiceReply reply = service_.handle({.path = line.url,
                                            .body = {.text = line.body, .share = {}},
                                            .client_gone = [this] { return cut_off_.load(); }});
      if (reply.client_gone) break;
      if (reply.status != 429 && reply.status != 503) return reply;
      const auto end = Clock::now() + std::chrono::seconds(reply.retry_after_s.value_or(1));
      while (!stopping_ && Clock::now() < end) std::this_thread::sleep_for(kRetrySlice);
    }
    return std::nullopt;
  }

  void record_failure(const BatchLine& line, const Json& error) {
    ++num_failed_;
    std::lock_guard lock(mutex_);
    if (first_failed_line_ != 0 && first_failed_line_ < line.number) return;
    first_failed_line_ = line.number;
    const bool has_message = error.is_object() && error.contains("message");
    first_failure_ = fmt::format("line {} ({}): {}",
                                 line.number,
                                 line.custom_id,
                                 has_message ? error["message"].get<std::string>() : dump(error));
  }

  void watch() {
    auto last = Clock::now();
    while (num_done_ < lines_.size() && !stopping_) {
      if (wait_stop_signal(std::chrono::milliseconds(100))) {
        log_warning("stopping: run again with --resume for the rest");
        cut_off_ = true;
        stopping_ = true;
      }
      if (Clock::now() - last < kProgressInterval) continue;
      last = Clock::now();
      print_progress(false);
    }
  }

  void print_progress(bool final) {
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin_).count();
    const auto done = static_cast<double>(num_done_.load());
    const double rate = elapsed_s > 0 ? done / elapsed_s : 0;
    const double left = static_cast<double>(lines_.size()) - done;
    fmt::print(stderr,
               "batch: {} of {} done, {} failed, {:.2f} requests/s, {:.1f} tokens/s{}\n",
               num_done_.load(),
               lines_.size(),
               num_failed_.load(),
               rate,
               elapsed_s > 0 ? static_cast<double>(num_tokens_.load()) / elapsed_s : 0,
               final || rate == 0 ? "" : fmt::format(", about {:.0f} s left", left / rate));
  }

  OpenAiService& service_;
  ResultFile& results_;
  const std::vector<BatchLine> lines_;
  Room room_;
  const Clock::time_point begin_ = Clock::now();
  std::atomic<size_t> next_{0};
  std::atomic<size_t> num_done_{0};  // with a line in the results
  std::atomic<int> num_failed_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> cut_off_{false};
  std::mutex mutex_;
  std::string problem_;
  int first_failed_line_ = 0;
  std::string first_failure_;
};

std::set<std::string> custom_ids(const std::vector<BatchLine>& lines) {
  std::set<std::string> ids;
  for (const BatchLine& line : lines) ids.insert(line.custom_id);
  return ids;
}

// What is left to do, known before the model is loaded.
struct BatchWork {
  std::vector<BatchLine> lines;
  std::unique_ptr<ResultFile> results;
};

BatchWork prepare_batch(const RunConfig& config, const BatchOptions& options) {
  const EngineInfo info = engine_info(config);
  const GenerationDefaults defaults = generation_defaults(config);
  const HttpOptions http = http_options(config);
  const ModelConfig model = model_config_of(config.model, Role::kTarget);
  refuse_same_file(options.input, options.output);
  BatchWork work;
  const AnswerFormats formats = choose_answer_formats({}, "auto", "auto");  // as good as any here
  work.lines =
      read_batch_lines(options.input, {info, defaults, http.call, model.eos_token_ids, formats});
  work.results =
      std::make_unique<ResultFile>(options.output, custom_ids(work.lines), options.resume);
  const size_t num_all = work.lines.size();
  const std::set<std::string>& answered = work.results->answered();
  std::erase_if(work.lines,
                [&](const BatchLine& line) { return answered.contains(line.custom_id); });
  if (options.resume)
    log_info("resuming: {} of {} lines are answered already", num_all - work.lines.size(), num_all);
  return work;
}

int batch(const FrontEndContext& context, BatchWork work) {
  if (work.lines.empty()) return 0;
  const HttpOptions http = http_options(context.config);
  OpenAiService service(context.engine, context.metrics, served_model(context), http);
  const int num_places = context.config.max_num_queued_reqs;
  const int num_workers = std::min({static_cast<int>(work.lines.size()),
                                    2 * context.config.max_num_seqs,
                                    num_places,
                                    kMostWorkers});
  BatchRun run(service, *work.results, std::move(work.lines), num_places);
  return run.run(num_workers);
}

}  // namespace

int batch_command(const CommandLine& line) {
  BatchOptions options;
  const Option input = with_aliases(path_option("input", &options.input, "batch lines (JSONL)"),
                                    {"-i", "--input-file"});
  const Option output = with_aliases(path_option("output", &options.output, "results (JSONL)"),
                                     {"-o", "--output-file"});
  const Option resume =
      flag_option("resume", &options.resume, "keep the results there are, answer the rest");
  const LoadedConfig loaded = load_config(line.arguments, {&input, &output, &resume});
  set_log_level(log_level_from_name(loaded.config.log_level));
  if (options.input.empty() || options.output.empty())
    throw Error("batch needs -i in.jsonl and -o out.jsonl");
  refuse_synthetic(loaded.config);
  BatchWork work;
  const auto prepare = [&] {
    log_accepted(loaded);
    work = prepare_batch(loaded.config, options);
  };
  const auto front_end = [&](const FrontEndContext& context) {
    return batch(context, std::move(work));
  };
  return run_job(loaded.config, line.launch, front_end, {.before_load = prepare, .link = {}});
}

}  // namespace outrider
