// batch: a file of OpenAI batch lines through the same service as HTTP. Lines are checked first,
// results are appended as they come (a killed job keeps what it has), --resume skips what is
// already answered.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "http/openai_request.h"
#include "http/service.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/json_depth.h"
#include "runtime/base/log.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/front_end.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kMaxDepth = 66;  // what a request may have, and the line around it
constexpr int kExitSomeFailed = 3;
constexpr int kExitStopped = 75;  // EX_TEMPFAIL: run again with --resume
constexpr auto kProgressInterval = std::chrono::seconds(5);

struct BatchOptions {
  std::string input;
  std::string output;
  bool resume = false;
};

struct BatchLine {
  int number = 0;
  std::string custom_id;
  std::string url;
  std::string body;
};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_field(const Json& json, const char* name, int number) {
  if (!json.contains(name) || !json[name].is_string()) {
    throw Error(fmt::format("line {}: {} must be a string", number, name));
  }
  return json[name].get<std::string>();
}

BatchLine read_line(const std::string& text, int number) {
  if (json_nests_deeper_than(text, kMaxDepth))
    throw Error(fmt::format("line {}: nested deeper than {} levels", number, kMaxDepth));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw Error(fmt::format("line {}: not a JSON object", number));
  BatchLine line;
  line.number = number;
  line.custom_id = text_field(json, "custom_id", number);
  line.url = text_field(json, "url", number);
  if (json.value("method", "POST") != "POST")
    throw Error(fmt::format("line {}: method must be POST", number));
  if (line.url != "/v1/completions" && line.url != "/v1/chat/completions") {
    throw Error(fmt::format(
        "line {}: url '{}' is not /v1/completions or /v1/chat/completions", number, line.url));
  }
  if (!json.contains("body") || !json["body"].is_object()) {
    throw Error(fmt::format("line {}: body must be an object", number));
  }
  if (json["body"].value("stream", false))
    throw Error(fmt::format("line {}: stream must be false", number));
  line.body = dump(json["body"]);
  return line;
}

// What is wrong with a call's body, as far as that can be said without running it; throws Error.
void check_body(const BatchLine& line, const CallContext& context) {
  try {
    if (line.url == "/v1/completions") {
      read_completion_call(line.body, context);
    } else {
      read_chat_call(line.body, context);
    }
  } catch (const std::exception& error) {
    throw Error(fmt::format("line {}: {}", line.number, error.what()));
  }
}

std::vector<BatchLine> read_input(const std::string& path, const CallContext& context) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(fmt::format("cannot read {}", path));
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.empty()) continue;
    lines.push_back(read_line(text, number));
    const BatchLine& line = lines.back();
    if (!ids.insert(line.custom_id).second) {
      throw Error(fmt::format("line {}: custom_id '{}' was used before", number, line.custom_id));
    }
    check_body(line, context);
  }
  return lines;
}

// The ids already answered without an error. A last line without an end was torn by a kill: it is
// cut off.
std::set<std::string> read_answered(const std::string& path) {
  std::set<std::string> answered;
  std::ifstream file(path, std::ios::binary);
  if (!file) return answered;
  std::string text;
  std::streamoff whole_bytes = 0;
  while (std::getline(file, text)) {
    if (file.eof()) break;
    whole_bytes = file.tellg();
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("custom_id") || !json["custom_id"].is_string()) {
      throw Error(
          fmt::format("{} is not the output of a batch: it has a line without custom_id", path));
    }
    if (json.contains("error") && json["error"].is_null())
      answered.insert(json["custom_id"].get<std::string>());
  }
  file.close();
  if (truncate(path.c_str(), whole_bytes) != 0)
    throw Error(fmt::format("cannot mend the end of {}", path));
  return answered;
}

// Appends whole lines; each is on the disk before the next batch of them begins.
class ResultFile {
 public:
  ResultFile(const std::string& path, bool append)
      : file_(std::fopen(path.c_str(), append ? "ab" : "wb")) {
    if (file_ == nullptr) throw Error(fmt::format("cannot write {}", path));
  }
  ~ResultFile() { std::fclose(file_); }
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  void append(const std::string& line) {
    std::lock_guard lock(mutex_);
    const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
    if (!written || std::fflush(file_) != 0)
      throw Error("cannot write the results: is the disk full?");
    const auto now = Clock::now();
    if (now - last_sync_ < std::chrono::seconds(1)) return;
    last_sync_ = now;
    fsync(fileno(file_));
  }

 private:
  std::FILE* file_;
  std::mutex mutex_;
  Clock::time_point last_sync_ = Clock::now();
};

class BatchRun {
 public:
  BatchRun(OpenAiService& service, ResultFile& results, std::vector<BatchLine> lines)
      : service_(service), results_(results), lines_(std::move(lines)) {}

  // Returns the exit code.
  int run(int num_workers) {
    std::vector<std::thread> workers;
    workers.reserve(static_cast<size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) workers.emplace_back([this] { work(); });
    watch();
    for (std::thread& worker : workers) worker.join();
    print_progress(true);
    if (!problem_.empty()) throw Error(problem_);
    if (num_done_ < lines_.size()) return kExitStopped;
    return num_failed_ > 0 ? kExitSomeFailed : 0;
  }

 private:
  void work() {
    while (!stopping_) {
      const size_t index = next_++;
      if (index >= lines_.size()) return;
      try {
        answer(lines_[index]);
      } catch (const std::exception& error) {
        std::lock_guard lock(mutex_);
        problem_ = error.what();
        stopping_ = true;
      }
      ++num_done_;
    }
  }

  void answer(const BatchLine& line) {
    const std::string request_id = "batch-" + line.custom_id;
    ServiceReply reply = service_.handle(
        {.path = line.url, .body = line.body, .client_gone = [this] { return cut_off_.load(); }});
    if (reply.client_gone) return;
    const Json body = Json::parse(reply.body, nullptr, false);
    const bool failed = reply.status != 200;
    if (failed) ++num_failed_;
    Json out = {
        {"id", request_id},
        {"custom_id", line.custom_id},
        {"response", {{"status_code", reply.status}, {"request_id", request_id}, {"body", body}}},
        {"error", nullptr}};
    if (failed) out["error"] = body.is_object() && body.contains("error") ? body["error"] : body;
    if (!failed && body.contains("usage"))
      num_tokens_ += body["usage"].value("completion_tokens", int64_t{0});
    results_.append(dump(out) + "\n");
  }

  void watch() {
    auto last = Clock::now();
    while (num_done_ < lines_.size() && !stopping_) {
      if (wait_stop_signal(std::chrono::milliseconds(100))) {
        log_warning("stopping: run again with --resume for the rest");
        stopping_ = true;
        cut_off_ = true;
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
    const double left_s = rate > 0 ? (static_cast<double>(lines_.size()) - done) / rate : 0;
    fmt::print(stderr,
               "batch: {} of {} done, {} failed, {:.2f} requests/s, {:.1f} tokens/s{}\n",
               num_done_.load(),
               lines_.size(),
               num_failed_.load(),
               rate,
               elapsed_s > 0 ? static_cast<double>(num_tokens_.load()) / elapsed_s : 0,
               final ? "" : fmt::format(", about {:.0f} s left", left_s));
  }

  OpenAiService& service_;
  ResultFile& results_;
  const std::vector<BatchLine> lines_;
  const Clock::time_point begin_ = Clock::now();
  std::atomic<size_t> next_{0};
  std::atomic<size_t> num_done_{0};
  std::atomic<int> num_failed_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> cut_off_{false};
  std::mutex mutex_;
  std::string problem_;
};

int batch(const FrontEndContext& context, const BatchOptions& options) {
  const HttpOptions http = http_options(context.config);
  OpenAiService service(context.engine, context.metrics, served_model(context), http);
  const CallContext call_context{
      context.engine.info(), context.defaults, http.call, context.model_config.eos_token_ids};
  std::vector<BatchLine> lines = read_input(options.input, call_context);
  if (options.resume) {
    const std::set<std::string> answered = read_answered(options.output);
    const auto is_answered = [&](const BatchLine& line) {
      return answered.contains(line.custom_id);
    };
    const size_t num_before = lines.size();
    std::erase_if(lines, is_answered);
    log_info(
        "resuming: {} of {} lines are answered already", num_before - lines.size(), num_before);
  }
  ResultFile results(options.output, options.resume);
  if (lines.empty()) return 0;
  const int num_workers = std::min({static_cast<int>(lines.size()),
                                    2 * context.config.max_num_seqs,
                                    context.config.max_num_queued_reqs,
                                    256});
  BatchRun run(service, results, std::move(lines));
  return run.run(num_workers);
}

}  // namespace

int batch_command(const CommandLine& line) {
  BatchOptions options;
  const Option input = with_aliases(text_option("input", &options.input, "batch lines (JSONL)"),
                                    {"-i", "--input-file"});
  const Option output = with_aliases(text_option("output", &options.output, "results (JSONL)"),
                                     {"-o", "--output-file"});
  const Option resume =
      flag_option("resume", &options.resume, "keep the results there are, answer the rest");
  const LoadedConfig loaded = load_config(line.arguments, {&input, &output, &resume});
  set_log_level(log_level_from_name(loaded.config.log_level));
  if (options.input.empty() || options.output.empty())
    throw Error("batch needs -i in.jsonl and -o out.jsonl");
  if (options.input == options.output) throw Error("the results cannot go into the input file");
  refuse_synthetic(loaded.config);
  return run_job(loaded.config, line.argc, line.argv, [&](const FrontEndContext& context) {
    return batch(context, options);
  });
}

}  // namespace outrider
