// See propose.h: proposed tokens from the draft's own logits, under the same processors and filters
// as the target's.
#include "scheduler/drafting/propose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "scheduler/drafting/draft_choice.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/sampling/logits_processor.h"
#include "scheduler/sampling/truncation.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

// Scaled values so far below the best one are no guesses: e^-16 of its weight.
constexpr float kGuessRange = 16.0f;
constexpr int32_t kRankedBehindNoise = 32;
// So far below the best one, values weigh less than what filters leave out anyway (1e-7).
constexpr float kNoWeightBelow = 17.0f;

NoiseKey noise_for(const DraftInput& input, Stream stream) {
  const auto position = static_cast<uint32_t>(input.tokens.size() + input.drafted.size());
  return {input.params->noise_seed, position, stream, input.round};
}

// keys: best first
std::vector<WeightedToken> weighted(std::span<const uint64_t> keys, float cut) {
  std::vector<WeightedToken> best;
  best.reserve(keys.size());
  float top = kMasked;
  for (uint64_t key : keys) {
    const float scaled = key_score(key);
    if (scaled < cut) break;
    if (best.empty()) top = scaled;
    best.push_back(
        {key_token(key), exact_exp(static_cast<double>(scaled) - static_cast<double>(top))});
  }
  return best;
}

// Of tokens in order of their rank.
template <typename Ranked, typename TokenOf>
Guesses others_than(int32_t drawn, const Ranked& ranked, int32_t num_guesses, TokenOf token_of) {
  Guesses others;
  for (const auto& entry : ranked) {
    if (others.full() || static_cast<int32_t>(others.tokens().size()) >= num_guesses) break;
    if (token_of(entry) != drawn) others.add(token_of(entry));
  }
  return others;
}

// One input and what is known of its row so far.
struct Line {
  const DraftInput* input = nullptr;
  VerifyRule rule = VerifyRule::kGreedy;
  int32_t row = 0;                 // of the scanner
  std::span<const uint64_t> keys;  // its best tokens, best first; none: unusable
  float cut = kMasked;  // by the target's filters, where they are applied to the whole row
  float ceiling = kNoCeiling;
  std::vector<uint64_t> noisy;      // coupled: the likeliest tokens with their noise
  uint64_t best = 0;                // coupled: of these and of all others
  std::vector<uint64_t> kept_keys;  // standard and block with typical_p: the best that it keeps
  uint64_t mass = 0;                // standard and block with top_p: of the row

  float max() const { return key_score(keys.front()); }
  bool may_be_guessed(uint64_t key) const { return key_score(key) >= max() - kGuessRange; }
  bool draws_from_list() const {
    return rule == VerifyRule::kStandard || rule == VerifyRule::kBlock;
  }
  // typical_p needs the whole row.
  bool is_typical() const { return draws_from_list() && input->params->typical_p < 1.0f; }
};

// The most that a token's noise can lift it, with what rounding its score may add.
bool may_reach(float scaled, uint64_t best) {
  const double margin = 1e-6 * (2.0 + std::abs(static_cast<double>(key_score(best))) +
                                std::abs(static_cast<double>(scaled)));
  return static_cast<double>(scaled) + kMaxGumbel + margin >= key_score(best);
}

int32_t num_keys_for(const DraftInput& input, VerifyRule rule) {
  if (rule == VerifyRule::kGreedy) return 1 + std::clamp(input.num_guesses, 0, kMaxGuesses);
  if (rule == VerifyRule::kCoupled) return kRankedBehindNoise;
  return std::clamp(input.num_candidates, 1, kMaxDraftCandidates);
}

// ---- the choice, once everything is known

RankedDraftToken nothing_proposed() { return {.drawn = {.token = -1}, .others = {}}; }

RankedDraftToken greedy_choice(const Line& line) {
  RankedDraftToken proposal;
  proposal.drawn.token = key_token(line.keys.front());
  const auto end = std::find_if_not(
      line.keys.begin(), line.keys.end(), [&](uint64_t key) { return line.may_be_guessed(key); });
  const std::span ranked(line.keys.begin(), end);
  proposal.others = others_than(proposal.drawn.token, ranked, line.input->num_guesses, key_token);
  return proposal;
}

RankedDraftToken coupled_choice(Line& line) {
  RankedDraftToken proposal;
  proposal.drawn.token = key_token(line.best);
  std::sort(line.noisy.begin(), line.noisy.end(), std::greater<uint64_t>());
  proposal.others =
      others_than(proposal.drawn.token, line.noisy, line.input->num_guesses, key_token);
  return proposal;
}

RankedDraftToken sampled_choice(const Line& line) {
  const DraftInput& input = *line.input;
  std::vector<WeightedToken> best =
      line.is_typical() ? weighted(line.kept_keys, line.cut) : weighted(line.keys, kMasked);
  std::vector<WeightedToken> ranked;
  if (input.num_guesses > 0) ranked = best;
  if (line.is_typical()) {  // all filters are applied already
    apply_filters(SamplingParams{}, 0.0, best);
  } else {
    apply_filters(*input.params, static_cast<double>(line.mass) / kWeightOne, best);
  }
  RankedDraftToken proposal;
  proposal.drawn = draw_candidate(best, noise_for(input, Stream::kDraft));
  std::erase_if(ranked, [](const WeightedToken& entry) { return !(entry.weight > 1e-7); });
  proposal.others =
      others_than(proposal.drawn.token, ranked, input.num_guesses, [](const auto& entry) {
        return entry.token;
      });
  return proposal;
}

// The others are ranked among the likeliest tokens only: where these hold little of the mass, none
// of them is a good guess. Mostly no other token can win the draw either, and the row is not looked
// at again.
void draw_coupled(Line& line, int32_t size, RowQuestions& questions) {
  const NoiseKey noise = noise_for(*line.input, Stream::kCoupled);
  line.noisy.reserve(line.keys.size());
  const auto may_win = [&](float scaled) { return line.best == 0 || may_reach(scaled, line.best); };
  for (const uint64_t key : line.keys) {
    const float scaled = key_score(key);
    if (scaled < line.cut || scaled > line.ceiling) continue;
    if (!may_win(scaled) && !line.may_be_guessed(key)) break;
    line.noisy.push_back(noisy_key(static_cast<double>(scaled), key_token(key), noise));
    line.best = std::max(line.best, line.noisy.back());
  }
  const float last = key_score(line.keys.back());
  const bool has_more = std::ssize(line.keys) < size && !(last < line.cut);
  if (!has_more || !may_win(last)) return;
  questions.draws.push_back({.row = line.row,
                             .cut = line.cut,
                             .ceiling = line.ceiling,
                             .noise = noise,
                             .key_to_beat = line.best});
}

// ---- the rows of a step

class ProposalStep {
 public:
  ProposalStep(std::span<const DraftInput> inputs, int32_t size, RowScanner& scanner)
      : size_(size), scanner_(scanner) {
    lines_.reserve(inputs.size());
    for (const DraftInput& input : inputs) {
      lines_.push_back({.input = &input,
                        .rule = resolve_rule(*input.params),
                        .row = static_cast<int32_t>(lines_.size())});
    }
  }

  std::vector<RankedDraftToken> run() {
    process_rows();
    find_best();
    truncate_rows();
    look_again();
    std::vector<RankedDraftToken> proposals;
    for (Line& line : lines_) proposals.push_back(choice(line));
    return proposals;
  }

 private:
  void process_rows() {
    RowQuestions questions;
    for (size_t i = 0; i < lines_.size(); ++i) {
      const DraftInput& input = *lines_[i].input;
      processed(i).begin({.params = input.params,
                          .tokens = input.tokens,
                          .num_prompt_tokens = input.num_prompt_tokens,
                          .draft = input.drafted,
                          .first_row = static_cast<int32_t>(input.drafted.size()),
                          .num_rows = 1,
                          .logits = input.logits,
                          .row_stride = size_,
                          .mask = input.mask},
                         {0, size_, size_});
      processed(i).ask(questions);
    }
    scanner_.answer(questions);
    for (size_t i = 0; i < lines_.size(); ++i) {
      processed(i).process();
      views_.push_back(processed(i).row(0));
    }
    scanner_.hold(views_);
  }

  ProcessedRows& processed(size_t i) {
    return kept_or_made(lines_[i].input->processed, made_, i, lines_.size());
  }

  void find_best() {
    size_t num_keys = 0;
    for (const Line& line : lines_) num_keys += num_keys_for(*line.input, line.rule);
    keys_.resize(num_keys);
    std::span<uint64_t> left = keys_;
    RowQuestions questions;
    for (const Line& line : lines_) {
      const auto n = static_cast<size_t>(num_keys_for(*line.input, line.rule));
      TopQuestion& top = questions.tops.emplace_back();
      top = {.row = line.row, .keys = left.first(n)};
      left = left.subspan(n);
      if (line.draws_from_list()) top.within = kNoWeightBelow;
    }
    scanner_.answer(questions);
    for (Line& line : lines_) {
      const TopQuestion& top = questions.tops[static_cast<size_t>(line.row)];
      if (top.bad || top.keys.empty() || key_score(top.keys.front()) == kMasked) continue;
      line.keys = top.keys;
    }
  }

  // By the target's own filters. Under the standard and block rules those other than typical_p are
  // applied to the best tokens alone.
  void truncate_rows() {
    std::vector<TruncationRow> rows;
    for (const Line& line : lines_) {
      const bool coupled = line.rule == VerifyRule::kCoupled;
      const bool wanted = coupled ? filters(*line.input->params, size_) : line.is_typical();
      if (line.keys.empty() || !wanted) continue;
      rows.push_back({.row = line.row, .params = line.input->params, .max = line.max()});
    }
    SoloExchange solo;
    truncate(rows, size_, scanner_, solo);
    for (const TruncationRow& row : rows) {
      Line& line = lines_[static_cast<size_t>(row.row)];
      line.cut = row.cut;
      line.ceiling = row.ceiling;
    }
  }

  // What the best tokens do not tell.
  void look_again() {
    RowQuestions questions;
    for (Line& line : lines_) {
      if (line.keys.empty()) continue;
      if (line.rule == VerifyRule::kCoupled) draw_coupled(line, size_, questions);
      if (!line.draws_from_list()) continue;
      if (line.is_typical()) {
        line.kept_keys.resize(line.keys.size());
        questions.tops.push_back(
            {.row = line.row, .ceiling = line.ceiling, .keys = line.kept_keys});
      } else if (line.input->params->top_p < 1.0f) {
        questions.sums.push_back({.row = line.row, .max = line.max()});
      }
    }
    if (questions.empty()) return;
    scanner_.answer(questions);
    for (const DrawQuestion& draw : questions.draws) line_of(draw).best = draw.key;
    for (const TopQuestion& top : questions.tops) line_of(top).kept_keys.resize(top.keys.size());
    for (const SumQuestion& sum : questions.sums) line_of(sum).mass = sum.mass;
  }

  template <typename Question>
  Line& line_of(const Question& question) {
    return lines_[static_cast<size_t>(question.row)];
  }

  static RankedDraftToken choice(Line& line) {
    if (line.keys.empty()) return nothing_proposed();
    if (line.draws_from_list()) return sampled_choice(line);
    return line.rule == VerifyRule::kGreedy ? greedy_choice(line) : coupled_choice(line);
  }

  const int32_t size_;
  RowScanner& scanner_;
  std::vector<ProcessedRows> made_;  // where none is kept
  std::vector<RowView> views_;
  std::vector<Line> lines_;
  std::vector<uint64_t> keys_;  // of the lines, one after the other
};

}  // namespace

std::vector<RankedDraftToken> propose_ranked(std::span<const DraftInput> inputs,
                                             RowScanner& scanner) {
  if (inputs.empty()) return {};
  const int32_t size = std::min(inputs[0].vocab_size, inputs[0].target_vocab_size);
  for (const DraftInput& input : inputs) {
    OUTRIDER_CHECK(std::min(input.vocab_size, input.target_vocab_size) == size);
  }
  if (size <= 0 || size > kMaxVocabSize) return std::vector(inputs.size(), nothing_proposed());
  return ProposalStep(inputs, size, scanner).run();
}

bool is_plain_choice(const SamplingParams& params, const TokenMask* mask, int32_t vocab_size) {
  const VerifyRule rule = resolve_rule(params);
  if (rule != VerifyRule::kGreedy && rule != VerifyRule::kCoupled) return false;
  if (rule == VerifyRule::kCoupled && filters(params, vocab_size)) return false;
  if (vocab_size <= 0 || vocab_size > kMaxVocabSize) return false;
  const bool masks_stops = params.min_tokens > 0 && !params.stop_token_ids.empty();
  return mask == nullptr && !masks_stops && params.logit_bias.empty() &&
         params.repetition_penalty == 1.0f && params.presence_penalty == 0.0f &&
         params.frequency_penalty == 0.0f;
}

NoiseKey coupled_noise(const DraftInput& input) { return noise_for(input, Stream::kCoupled); }

int32_t num_likeliest_wanted(const DraftInput& input) {
  return input.num_guesses > 0 ? num_keys_for(input, resolve_rule(*input.params)) : 0;
}

RankedDraftToken propose_plain(const DraftInput& input,
                               uint64_t best,
                               std::span<const uint64_t> likeliest) {
  if (likeliest.empty()) return {.drawn = {.token = key_token(best)}, .others = {}};
  Line line{.input = &input, .rule = resolve_rule(*input.params), .keys = likeliest};
  if (line.rule == VerifyRule::kGreedy) return greedy_choice(line);
  RowQuestions answered;  // by `best`
  draw_coupled(line, 0, answered);
  line.best = best;
  return coupled_choice(line);
}

DraftToken propose(const DraftInput& input) {
  HostRowScanner scanner;
  return std::move(propose_ranked(std::span(&input, 1), scanner).front().drawn);
}

}  // namespace outrider
