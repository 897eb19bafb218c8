// What a trace file (runtime/base/trace_file.h) says of some rounds of one request: what
// `outrider plot-rounds` draws. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/block_source.h"

namespace outrider {

struct RoundsChoice {
  uint64_t request = 0;     // 0 = the first one that has draft tokens
  int32_t first_round = 0;  // sampling round
  int32_t num_rounds = 8;
};

// Times in microseconds since the file's first event.
struct TimeSpan {
  double begin_us = 0;
  double end_us = 0;
};

struct PicturedRound {
  TimeSpan time;  // of the targets' step
  int32_t round = 0;
  int32_t num_drafted = 0;
  int32_t num_accepted = 0;
  int32_t num_rows = 0;  // of the step, all requests together
  BlockSource source = BlockSource::kNone;
  bool had_proposal = false;
};

struct PicturedStep {
  TimeSpan time;
  int32_t num_rows = 0;
};

struct PicturedMessage {
  double sent_us = 0;
  double heard_us = 0;
  bool to_draft = false;
};

// Draft tokens of this request, at the end of a step of the draft.
struct PicturedTokens {
  double time_us = 0;
  int32_t num_tokens = 0;
  bool guessed = false;  // behind an outcome that may come
};

struct RoundsPicture {
  uint64_t request = 0;
  int32_t num_requests = 0;  // in the file
  TimeSpan window;
  std::vector<PicturedRound> rounds;
  std::vector<TimeSpan> waits;  // of the targets for the draft
  bool has_draft = false;       // a draft's rank is in the file
  std::vector<PicturedStep> draft_steps;
  std::vector<PicturedTokens> drafted;
  std::vector<PicturedMessage> messages;
};

// Throws Error when the text is not such a file, or has no such request or rounds.
RoundsPicture read_rounds(std::string_view trace, const RoundsChoice& choice);

// A whole SVG file; the same picture gives the same bytes.
std::string rounds_svg(const RoundsPicture& picture);

}  // namespace outrider
