// run_text_checks() of verify_pair.h.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/commands/verify/verify_pair.h"

namespace outrider {
namespace {

constexpr const char* kPrompts[] = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door.",
    "The old woman went into the forest to gather wood, and",
    "In the garden stood a tree that bore golden apples.",
    "The number of people who",
    "\"I do not know,\" she said,",
    "When the soldiers came to the river",
    "There are two ways to",
};
constexpr float kSeededTemperature = 0.9f;

struct TextKind {
  const char* name;  // in the row
  bool seeded;
};
constexpr TextKind kKinds[] = {{"greedy", false}, {"seeded", true}};

// How a pass is written.
struct Manner {
  int32_t draft_len = 0;
  size_t num_in_flight = 1;
  AsyncDrafting async_drafting = AsyncDrafting::kAuto;
};

using Texts = std::vector<std::vector<int32_t>>;

struct Pass {
  Texts texts;
  DraftCounts drafts;
};

class TextChecks {
 public:
  TextChecks(const FrontEndContext& context, const PairChecks& options)
      : context_(context), options_(options) {
    for (const char* prompt : kPrompts) prompts_.push_back(context.tokenizer->encode(prompt));
  }

  std::vector<CheckRow> run() {
    for (const TextKind& kind : kKinds) run_kind(kind);
    return std::move(rows_);
  }

 private:
  void run_kind(const TextKind& kind) {
    const size_t together = requests_in_flight(context_.config);
    const Pass alone = write(kind, {});
    add_row(kind,
            "speculation off, together = alone",
            alone,
            write(kind, {.num_in_flight = together}),
            0);
    const std::vector<int32_t> lens = draft_lens();
    for (int32_t draft_len : lens) {
      compare(kind, fmt::format("draft length {}, alone", draft_len), {draft_len, 1}, alone);
      compare(
          kind, fmt::format("draft length {}, together", draft_len), {draft_len, together}, alone);
    }
    // The others draft asynchronously as the server is told to.
    for (AsyncDrafting mode : {AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache}) {
      compare(kind,
              fmt::format("asynchronous drafting: {}, together", async_drafting_name(mode)),
              {lens.back(), together, mode},
              alone);
    }
  }

  void compare(const TextKind& kind,
               const std::string& what,
               const Manner& manner,
               const Pass& expected) {
    add_row(kind,
            what + " = off",
            expected,
            write_with_drafts(kind, manner, expected),
            manner.draft_len);
  }

  // 1, 2 and the greatest.
  std::vector<int32_t> draft_lens() const {
    const int32_t most = context_.engine.info().num_speculative_tokens;
    std::set<int32_t> lens = {1, std::min(2, most), most};
    return {lens.begin(), lens.end()};
  }

  // A pass with other texts than expected is never made anew.
  Pass write_with_drafts(const TextKind& kind, const Manner& manner, const Pass& expected) const {
    Pass pass = write(kind, manner);
    for (int attempt = 1; attempt < kMostAttempts; ++attempt) {
      if (pass.drafts.num_accepted > 0 || pass.texts != expected.texts) break;
      pass = write(kind, manner);
    }
    return pass;
  }

  Pass write(const TextKind& kind, const Manner& manner) const {
    Pass pass;
    const auto question = [&](size_t i) {
      Request asked;
      asked.prompt = prompts_[i % prompts_.size()];
      asked.params.max_tokens = options_.num_text_tokens;
      asked.params.max_draft_len = manner.draft_len;
      asked.params.async_drafting = manner.async_drafting;
      asked.params.temperature = kind.seeded ? kSeededTemperature : 0.0f;
      if (kind.seeded) asked.params.seed = asked.params.noise_seed = 1000 + i;
      // What auto chooses for a seed, whatever the server's own choice is.
      asked.params.verify_mode = VerifyMode::kCoupled;
      return asked;
    };
    const auto num_texts = static_cast<size_t>(options_.num_texts);
    ask_engine(context_,
               num_texts,
               manner.num_in_flight,
               question,
               [&](size_t, const BenchAnswer& answer) {
                 pass.texts.push_back(answer.tokens);
                 add_drafts(answer, &pass.drafts);
               });
    return pass;
  }

  void add_row(const TextKind& kind,
               const std::string& what,
               const Pass& expected,
               const Pass& got,
               int32_t draft_len) {
    CheckRow row;
    row.kind = CheckKind::kEquality;
    row.check = "text: " + what;
    row.mode = kind.name;
    row.num_sequences = static_cast<int64_t>(expected.texts.size());
    for (size_t i = 0; i < expected.texts.size(); ++i) {
      const auto& left = expected.texts[i];
      const auto& right = got.texts[i];
      const auto difference =
          std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first;
      row.num_tokens += static_cast<int64_t>(std::max(left.size(), right.size()));
      row.num_equal_tokens += difference - left.begin();
    }
    const std::set<std::vector<int32_t>> different(expected.texts.begin(), expected.texts.end());
    if (different.size() < 2) row.problem = "All texts are the same, so that equality says little.";
    if (draft_len > 0) {
      row.drafts = got.drafts;
      if (got.drafts.num_accepted == 0)
        row.problem = "No draft token was accepted, so nothing was compared.";
    }
    options_.progress(fmt::format("{}, {}", row.mode, row.check));
    rows_.push_back(std::move(row));
  }

  const FrontEndContext& context_;
  const PairChecks& options_;
  Texts prompts_;
  std::vector<CheckRow> rows_;
};

}  // namespace

std::vector<CheckRow> run_text_checks(const FrontEndContext& context, const PairChecks& options) {
  return TextChecks(context, options).run();
}

}  // namespace outrider
