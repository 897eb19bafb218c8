// See batch_run.h.
#include "http/batches/batch_run.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "http/api/json_fields.h"
#include "http/wire/options.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kRetrySlice = std::chrono::milliseconds(20);

}  // namespace

void BatchRun::Room::enter(int num_requests) {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return num_free_ >= std::min(num_requests, size_); });
  num_free_ -= num_requests;
}

void BatchRun::Room::leave(int num_requests) {
  std::lock_guard lock(mutex_);
  num_free_ += num_requests;
  freed_.notify_all();
}

BatchRun::BatchRun(Setup setup, std::vector<BatchLine> lines)
    : setup_(std::move(setup)), lines_(std::move(lines)), room_(setup_.num_places) {}

bool BatchRun::run(const std::function<Wish()>& look) {
  const size_t num_workers = std::min(lines_.size(), static_cast<size_t>(setup_.num_workers));
  std::vector<std::thread> workers;
  workers.reserve(num_workers);
  for (size_t i = 0; i < num_workers; ++i) workers.emplace_back([this] { work(); });
  while (num_done_ < lines_.size() && !stopping_) {
    const Wish wish = look();
    if (wish != Wish::kGo) stop(wish == Wish::kCut);
  }
  for (std::thread& worker : workers) worker.join();
  if (!problem_.empty()) throw Error(problem_);
  return num_done_ == lines_.size();
}

void BatchRun::stop(bool cut_off) {
  if (cut_off) cut_off_ = true;
  stopping_ = true;
}

void BatchRun::work() {
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
      stop(true);
    }
    room_.leave(line.num_requests);
  }
}

// False when the run was stopped first: then nothing is kept.
bool BatchRun::answer(const BatchLine& line) {
  const std::optional<ServerResponse> reply = ask(line);
  if (!reply) return false;
  const Json body = Json::parse(reply->body);
  BatchResult result{.custom_id = line.custom_id, .status = reply->status, .body = dumped(body)};
  if (reply->status != 200) {
    result.error = dumped(body.is_object() && body.contains("error") ? body["error"] : body);
  } else if (body.contains("usage")) {
    const Json& usage = body["usage"];
    num_tokens_ += usage.value("completion_tokens", usage.value("output_tokens", int64_t{0}));
  }
  setup_.keep(line, result);
  if (reply->status != 200) ++num_failed_;
  return true;
}

// While there is no room for the line it is asked again: that is no answer to it.
std::optional<ServerResponse> BatchRun::ask(const BatchLine& line) {
  while (!stopping_) {
    ServerResponse reply = setup_.ask({.path = line.url,
                                       .body = {.text = line.body},
                                       .least_priority = setup_.least_priority,
                                       .client_gone = [this] { return cut_off_.load(); }});
    if (reply.client_gone) break;
    if (reply.status != 429 && reply.status != 503) return reply;
    const auto end = Clock::now() + std::chrono::seconds(kRetryAfterS);
    while (!stopping_ && Clock::now() < end) std::this_thread::sleep_for(kRetrySlice);
  }
  return std::nullopt;
}

}  // namespace outrider
