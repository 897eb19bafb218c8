// See decode_measure.h.
#include "runtime/commands/bench/decode/decode_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace outrider {
namespace {

Request make_request(const FrontEndContext& context,
                     const DecodeOptions& options,
                     const std::string& prompt,
                     int32_t draft_len) {
  Request request = bench_request(context, prompt, options.max_tokens);
  request.params.temperature = static_cast<float>(options.temperature);
  request.params.max_draft_len = draft_len;
  if (options.seed >= 0) {
    request.params.seed = static_cast<uint64_t>(options.seed);
    request.params.noise_seed = *request.params.seed;
  } else {
    std::random_device device;
    request.params.noise_seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  return request;
}

void add_to(std::vector<int64_t>* sums, size_t position, int64_t value) {
  if (sums->size() <= position) sums->resize(position + 1);
  (*sums)[position] += value;
}

void count_answer(const BenchAnswer& answer, DecodeLength* length) {
  const SpeculationStats& stats = answer.stats;
  length->num_rounds += stats.num_rounds;
  length->num_tokens += static_cast<int64_t>(answer.tokens.size());
  length->texts.push_back(answer.tokens);
  for (size_t j = 0; j < stats.drafted_per_position.size(); ++j) {
    const int64_t reached = j == 0 ? stats.num_spec_rounds : stats.accepted_per_position[j - 1];
    add_to(&length->drafted, j, stats.drafted_per_position[j]);
    add_to(&length->examined, j, std::min<int64_t>(reached, stats.drafted_per_position[j]));
    add_to(&length->accepted, j, stats.accepted_per_position[j]);
  }
}

// Means over the pass: of rounds without prompts, plain ones for length 0, else verifications. A
// pass may have had none.
void record_times(const RoundTimes& before, const RoundTimes& after, DecodeLength* length) {
  const bool plain = length->draft_len == 0;
  const int64_t count = plain ? after.num_plain_rounds - before.num_plain_rounds
                              : after.num_verify_rounds - before.num_verify_rounds;
  const double total_s = plain ? after.plain_total_s - before.plain_total_s
                               : after.verify_total_s - before.verify_total_s;
  if (count > 0) length->step_ms.push_back(1e3 * total_s / static_cast<double>(count));
  if (!plain) length->draft_step_ms.push_back(1e3 * after.draft_step_s);
}

void run_pass(const FrontEndContext& context,
              const DecodeOptions& options,
              const std::vector<std::string>& prompts,
              DecodeLength* length) {
  std::vector<Request> requests;
  for (const std::string& prompt : prompts)
    requests.push_back(make_request(context, options, prompt, length->draft_len));
  const RoundTimes before = context.engine.round_times();
  const BenchLoad load = run_bench_requests(context, std::move(requests), options.concurrency);
  double decode_s = 0;
  double ttft_s = 0;
  int64_t num_decoded = 0;
  int64_t num_prompt_tokens = 0;
  for (const BenchAnswer& answer : load.answers) {
    decode_s += answer.decode_s;
    ttft_s += answer.ttft_s;
    num_decoded += answer.num_decoded;
    num_prompt_tokens += answer.num_prompt_tokens;
    count_answer(answer, length);
  }
  // One at a time: the decode part alone. Together: the wall clock, since prompts and decodes of
  // different requests overlap.
  const bool alone = options.concurrency == 1;
  const double passed_s = alone ? decode_s : load.wall_s;
  length->tokens_per_s.push_back(passed_s > 0 ? static_cast<double>(num_decoded) / passed_s : 0);
  if (alone && ttft_s > 0)
    length->prefill_tokens_per_s.push_back(static_cast<double>(num_prompt_tokens) / ttft_s);
  record_times(before, context.engine.round_times(), length);
}

}  // namespace

double DecodeLength::alpha() const {
  const int64_t all = std::accumulate(examined.begin(), examined.end(), int64_t{0});
  const int64_t num_accepted = std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
  return all > 0 ? static_cast<double>(num_accepted) / static_cast<double>(all) : 0;
}

double DecodeLength::tokens_per_round() const {
  return num_rounds > 0 ? static_cast<double>(num_tokens) / static_cast<double>(num_rounds) : 0;
}

double DecodeLength::mean_draft_len() const {
  const int64_t all = std::accumulate(drafted.begin(), drafted.end(), int64_t{0});
  return all > 0 ? static_cast<double>(all) / static_cast<double>(drafted.front()) : 0;
}

std::string DecodeLength::name() const {
  return is_auto ? fmt::format("auto, {:.1f} on average", mean_draft_len())
                 : std::to_string(draft_len);
}

PairStepTimes DecodeMeasurement::step_times(const DecodeLength& length) const {
  return {median(plain().step_ms), median(length.step_ms), median(length.draft_step_ms)};
}

double DecodeMeasurement::cost_ratio(const DecodeLength& length) const {
  const PairStepTimes times = step_times(length);
  return times.plain > 0 ? times.draft / times.plain : 0;
}

Interval DecodeMeasurement::speedup(const DecodeLength& length) const {
  return bootstrap_ratio(length.tokens_per_s, plain().tokens_per_s);
}

int DecodeMeasurement::num_same_text(const DecodeLength& length) const {
  int count = 0;
  for (size_t i = 0; i < length.texts.size(); ++i)
    count += length.texts[i] == plain().texts[i] ? 1 : 0;
  return count;
}

DecodeMeasurement measure_decode(const FrontEndContext& context,
                                 const DecodeOptions& options,
                                 Progress* progress) {
  const EngineInfo& info = context.engine.info();
  DecodeMeasurement found;
  found.model = info.served_model_name;
  found.draft = info.draft;
  found.num_target_ranks = info.num_target_ranks;
  std::vector<int32_t> draft_lens = options.draft_lens;
  if (draft_lens.empty()) draft_lens = {0, info.num_speculative_tokens};
  if (info.num_speculative_tokens == 0) draft_lens = {0};
  const std::vector<std::string> prompts =
      read_bench_prompts(options.prompts_file, options.num_prompts);
  found.lengths.resize(draft_lens.size());
  std::vector<std::function<void()>> variants;
  for (size_t i = 0; i < draft_lens.size(); ++i) {
    found.lengths[i].draft_len = draft_lens[i];
    found.lengths[i].is_auto =
        draft_lens[i] > 0 && context.config.speculative.num_speculative_tokens == kAutoDraftLen;
    variants.emplace_back([&, i] { run_pass(context, options, prompts, &found.lengths[i]); });
  }
  for (const int32_t draft_len : draft_lens) {  // warm-up
    DecodeLength unused{.draft_len = draft_len};
    run_pass(context, options, {prompts[0]}, &unused);
  }
  run_in_turns(options.num_repeats, variants, progress);
  return found;
}

}  // namespace outrider
