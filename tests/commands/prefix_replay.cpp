// See prefix_replay.h.
#include "tests/commands/prefix_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/seeded_draws.h"

namespace outrider {
namespace {

constexpr double kMaxTokens = 16 << 20;  // of one prompt or answer

int32_t scaled_length(int32_t length, double scale) {
  const double scaled = std::round(length * scale);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, kMaxTokens));
}

// A run of random tokens. Equal keys give equal beginnings, whatever the lengths.
struct TracePiece {
  uint64_t key = 0;
  int32_t num_tokens = 0;
};

// The pieces of a trace's prompt: its blocks by hash id, scaled, and what is left over. `row` tells
// prompts without hash ids apart.
std::vector<TracePiece> trace_pieces(const TraceRow& scaled_row, double length_scale, size_t row) {
  constexpr uint64_t kSalt = 1;
  const auto block_len =
      static_cast<int32_t>(std::max(1.0, std::round(kTraceBlockTokens * length_scale)));
  std::vector<TracePiece> pieces;
  int32_t left = scaled_row.input_len;
  for (const int64_t id : scaled_row.hash_ids) {
    if (left == 0) break;
    const int32_t num_tokens = std::min(left, block_len);
    pieces.push_back({mix_seed(kSalt, static_cast<uint64_t>(id)), num_tokens});
    left -= num_tokens;
  }
  // The row's own key must meet no hash id's.
  if (left > 0) pieces.push_back({mix_seed(mix_seed(~kSalt, 0), row), left});
  return pieces;
}

// Another token for every request and position, so that answers are nobody's beginning.
RoundDecision made_up(const RoundPlan& plan) {
  RoundDecision decision;
  for (const SequencePlan& rows : plan.sequences) {
    SequenceDecision made;
    made.sequence_id = rows.sequence_id;
    made.next_token = static_cast<int32_t>((rows.sequence_id * 7919u + rows.round) & 0xFFFF);
    decision.sequences.push_back(made);
  }
  return decision;
}

class Replay {
 public:
  Replay(const std::vector<ReplayRequest>& requests, const ReplaySettings& settings)
      : requests_(requests), settings_(settings), planner_(settings.planner) {
    result_.num_cached.resize(requests.size());
  }

  ReplayResult run() {
    while (num_arrived_ < requests_.size() || !planner_.idle()) {
      if (planner_.idle()) now_s_ = std::max(now_s_, requests_[num_arrived_].arrival_s);
      while (num_arrived_ < requests_.size() && requests_[num_arrived_].arrival_s <= now_s_) {
        arrive();
      }
      play_round();
    }
    result_.seconds = now_s_;
    result_.mean_running /= std::max<double>(1, static_cast<double>(result_.num_rounds));
    result_.num_preemptions = planner_.counters().num_preemptions;
    return std::move(result_);
  }

 private:
  void arrive() {
    const ReplayRequest& wanted = requests_[num_arrived_++];
    Request request;
    request.id = num_arrived_;
    request.prompt = wanted.prompt;
    request.params.max_tokens = wanted.output_len;
    request.stream = std::make_shared<ResultStream>();
    if (const std::string reason = planner_.refusal(request); !reason.empty()) {
      throw Error(fmt::format("request {} of the trace: {}", request.id, reason));
    }
    streams_[request.id] = request.stream;
    planner_.add(std::move(request));
  }

  void play_round() {
    const RoundPlan plan = planner_.plan();
    planner_.apply(plan, settings_.execute ? settings_.execute(plan) : made_up(plan));
    now_s_ += settings_.round_s;
    ++result_.num_rounds;
    const auto running = static_cast<int32_t>(plan.sequences.size());
    result_.most_running = std::max(result_.most_running, running);
    result_.mean_running += running;
    for (const SequencePlan& rows : plan.sequences) listen(rows.sequence_id);
  }

  void listen(uint64_t id) {
    const auto stream = streams_.find(id);
    while (const auto event = stream->second->wait_next(std::chrono::milliseconds(0))) {
      if (event->finish_reason == FinishReason::kNone) continue;
      if (event->finish_reason == FinishReason::kError) {
        throw Error(fmt::format("request {} of the trace: {}", id, event->error));
      }
      result_.num_cached[id - 1] = event->num_cached_tokens;
      streams_.erase(stream);
      return;
    }
  }

  const std::vector<ReplayRequest>& requests_;
  const ReplaySettings& settings_;
  Planner planner_;
  std::map<uint64_t, std::shared_ptr<ResultStream>> streams_;  // of requests that have not ended
  size_t num_arrived_ = 0;
  double now_s_ = 0;
  ReplayResult result_;
};

}  // namespace

std::vector<TraceRow> parse_mooncake_trace(const std::string& text) {
  std::vector<TraceRow> rows;
  std::istringstream lines(text);
  double first_s = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    const double time_s = row.at("timestamp").get<double>() / 1e3;
    if (rows.empty()) first_s = time_s;
    rows.push_back({time_s - first_s,
                    row.at("input_length").get<int32_t>(),
                    row.at("output_length").get<int32_t>(),
                    row.at("hash_ids").get<std::vector<int64_t>>()});
  }
  return rows;
}

void scale_trace(double time_scale, double length_scale, std::vector<TraceRow>* rows) {
  for (TraceRow& row : *rows) {
    row.arrival_s *= time_scale;
    row.input_len = scaled_length(row.input_len, length_scale);
    row.output_len = scaled_length(row.output_len, length_scale);
  }
}

std::vector<ReplayRequest> replay_requests(const std::vector<TraceRow>& scaled_rows,
                                           double length_scale,
                                           int32_t vocab_size) {
  constexpr uint32_t kWordStream = 2;
  const int32_t first = std::min(300, vocab_size / 2);  // special and byte tokens come before
  std::vector<ReplayRequest> requests;
  for (const TraceRow& row : scaled_rows) {
    ReplayRequest request{.arrival_s = row.arrival_s, .output_len = std::max(1, row.output_len)};
    for (const TracePiece& piece : trace_pieces(row, length_scale, requests.size())) {
      SeededDraws draws(piece.key, kWordStream);
      for (int32_t i = 0; i < piece.num_tokens; ++i)
        request.prompt.push_back(
            first + static_cast<int32_t>(draws.below(static_cast<uint32_t>(vocab_size - first))));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

ReplayResult replay(const std::vector<ReplayRequest>& requests, const ReplaySettings& settings) {
  return Replay(requests, settings).run();
}

std::vector<int32_t> reusable_tokens(const std::vector<ReplayRequest>& requests,
                                     int32_t block_size) {
  // A tree of blocks: (the text before, a block's tokens) -> the text with it; 0 is the empty text.
  std::map<std::pair<int64_t, std::vector<int32_t>>, int64_t> texts;
  std::vector<int32_t> reusable;
  for (const ReplayRequest& request : requests) {
    int64_t text = 0;
    int32_t num_known = 0;
    bool all_known = true;
    const std::span<const int32_t> prompt = request.prompt;
    const auto size = static_cast<size_t>(block_size);
    for (size_t begin = 0; begin + size <= prompt.size(); begin += size) {
      const std::span<const int32_t> block = prompt.subspan(begin, size);
      const auto [found, is_new] =
          texts.try_emplace({text, {block.begin(), block.end()}}, std::ssize(texts) + 1);
      text = found->second;
      all_known = all_known && !is_new && begin + size < prompt.size();
      if (all_known) num_known += block_size;
    }
    reusable.push_back(num_known);
  }
  return reusable;
}

int32_t blocks_for_all(const std::vector<ReplayRequest>& requests, int32_t block_size) {
  int64_t num_blocks = 0;
  for (const ReplayRequest& request : requests) {
    num_blocks += static_cast<int64_t>(request.prompt.size()) + request.output_len + block_size - 1;
  }
  num_blocks /= block_size;
  if (num_blocks > INT32_MAX / block_size) throw Error("the trace is too long for one replay");
  return static_cast<int32_t>(num_blocks);
}

}  // namespace outrider
