// Unigram as Hugging Face's tokenizers does it, ties and rounding included, since equal ids are the
// point. Called on every encode, any thread.
#include "models/text/tokenizer/unigram.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "models/text/tokenizer/unicode.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// What an unknown character costs beyond the least likely piece.
constexpr double kUnknownPenalty = 10;

// The number as Hugging Face's JSON reader makes it: the digits as a whole number, rounded, times
// or over a power of ten, rounded again. The nearest double may differ in its last bit, and sums of
// such scores decide between cuts that are equally good.
double twice_rounded(double score) {
  char digits[32];
  // The shortest text that gives the number back: d.ddde-xx.
  const auto end =
      std::to_chars(
          digits, digits + sizeof(digits), std::fabs(score), std::chars_format::scientific)
          .ptr;
  uint64_t significand = 0;
  int exponent = 0;
  const char* pos = digits;
  for (bool is_fraction = false; pos < end && *pos != 'e'; ++pos) {
    if (*pos == '.') {
      is_fraction = true;
      continue;
    }
    significand = significand * 10 + static_cast<uint64_t>(*pos - '0');
    exponent -= is_fraction ? 1 : 0;
  }
  if (pos == end) return score;  // infinity
  int written = 0;
  pos += pos[1] == '+' ? 2 : 1;
  std::from_chars(pos, end, written);
  exponent += written;
  // Literals of up to 308 are exact powers or their nearest double.
  double value = static_cast<double>(significand);
  for (; exponent < -308; exponent += 308) value /= 1e308;
  const double power = std::strtod(("1e" + std::to_string(std::abs(exponent))).c_str(), nullptr);
  value = exponent < 0 ? value / power : value * power;
  return std::signbit(score) ? -value : value;
}

std::vector<std::pair<std::string_view, int32_t>> entries_of(
    const UnigramSpec& spec, const std::unordered_set<int32_t>& control_ids) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const auto value = static_cast<int32_t>(id);
    if (!control_ids.contains(value)) entries.emplace_back(spec.vocab[id].first, value);
  }
  return entries;
}

}  // namespace

// The best way to a place of the word: its last piece and the sum of all scores.
struct UnigramModel::Step {
  double score = 0;
  size_t begin = SIZE_MAX;  // of the last piece; SIZE_MAX: none leads here yet
  int32_t id = -1;
};

UnigramModel::UnigramModel(const UnigramSpec& spec, const std::unordered_set<int32_t>& control_ids)
    : trie_(entries_of(spec, control_ids)), unk_id_(spec.unk_id), control_ids_(control_ids) {
  double least = std::numeric_limits<double>::infinity();
  scores_.reserve(spec.vocab.size());
  for (const auto& [piece, score] : spec.vocab) {
    ids_.insert_or_assign(piece, static_cast<int32_t>(scores_.size()));
    scores_.push_back(twice_rounded(score));
    least = std::min(least, scores_.back());
  }
  unknown_score_ = least - kUnknownPenalty;
  find_byte_tokens(spec.byte_fallback);
}

std::vector<UnigramModel::Step> UnigramModel::best_steps(std::string_view word) const {
  std::vector<Step> steps(word.size() + 1);
  // Of two ways with the same score the one found first stays.
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Step& step = steps[end];
    const double sum = score + steps[begin].score;
    if (step.begin == SIZE_MAX || sum > step.score) step = {sum, begin, id};
  };
  for (size_t pos = 0; pos < word.size();) {
    const size_t next = pos + unicode::code_point_at(word, pos).num_bytes;
    bool is_known = false;
    trie_.for_each_prefix(word, pos, [&](size_t end, int32_t id) {
      offer(pos, end, scores_[static_cast<size_t>(id)], id);
      is_known = is_known || end == next;
    });
    if (!is_known) {
      if (!unk_id_) throw Error("the text has a character that the tokenizer has no token for");
      offer(pos, next, unknown_score_, *unk_id_);
    }
    pos = next;
  }
  return steps;
}

// A run of unknown characters is one token, unless its bytes have tokens.
void UnigramModel::append_unknown(std::string_view run, std::vector<int32_t>& out) const {
  const int32_t id = id_or(ids_, run, -1);
  if (id >= 0 && !control_ids_.contains(id)) {
    out.push_back(id);
  } else if (!append_bytes(run, out)) {
    out.push_back(*unk_id_);
  }
}

void UnigramModel::append_word(std::string_view word, std::vector<int32_t>& out) const {
  const std::vector<Step> steps = best_steps(word);
  std::vector<size_t> ends;  // of the pieces, the last first
  for (size_t end = word.size(); end > 0; end = steps[end].begin) ends.push_back(end);
  for (size_t i = ends.size(); i > 0; --i) {
    const Step& step = steps[ends[i - 1]];
    if (step.id != unk_id_) {
      out.push_back(step.id);
      continue;
    }
    while (i > 1 && steps[ends[i - 2]].id == unk_id_) --i;
    append_unknown(word.substr(step.begin, ends[i - 1] - step.begin), out);
  }
}

}  // namespace outrider
