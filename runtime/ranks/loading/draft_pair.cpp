// See draft_pair.h.
#include "runtime/ranks/loading/draft_pair.h"

#include <algorithm>

#include "models/checkpoint/fingerprint.h"
#include "models/families/families.h"
#include "models/simulated/spec.h"
#include "models/text/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

// What can be known of a pair without weights.
struct Pair {
  std::shared_ptr<const Tokenizer> target;
  std::shared_ptr<const Tokenizer> draft;
  ModelConfig target_config;
  ModelConfig draft_config;
};

Pair load_pair(const std::string& target, const std::string& draft) {
  for (const std::string& name : {target, draft}) {
    if (has_no_files(name))
      throw Error(fmt::format("'{}' is synthetic or simulated: it has no tokenizer", name));
  }
  const auto target_folder = model_folder(target, Role::kTarget);
  const auto draft_folder = model_folder(draft, Role::kDraft);
  return {Tokenizer::load(target_folder),
          Tokenizer::load(draft_folder),
          load_model_config(target_folder),
          load_model_config(draft_folder)};
}

VocabularyMatch match(const Pair& pair) {
  return match_vocabularies(pair.target, pair.target_config, pair.draft, pair.draft_config);
}

bool needs_no_translation(const VocabularyMatch& found) {
  return found.usable_directly() && found.draft_embeds_all;
}

VocabularyMatch usable_match(const RunConfig& config, const Pair& pair) {
  VocabularyMatch found = match(pair);
  const bool may_translate = found.usable_directly() || config.speculative.use_heterogeneous_vocab;
  if (needs_no_translation(found) || (may_translate && found.num_translatable > 0)) return found;
  throw Error(fmt::format("draft '{}' cannot serve target '{}': {}",
                          config.speculative.model,
                          config.model,
                          describe(found)));
}

}  // namespace

VocabularyMatch match_pair(const std::string& target, const std::string& draft) {
  return match(load_pair(target, draft));
}

VocabularyDigest vocabulary_digest(const std::string& model, Role role) {
  const int32_t num_rows = model_config_of(model, role).vocab_size;
  if (is_simulated(model)) {
    const SimulatedSpec spec = parse_simulated(model);  // of one language
    return {fmt::format("sim {} {} {}", spec.seed, spec.vocab, spec.workload_classes),
            num_rows,
            num_rows};
  }
  if (is_synthetic(model)) return {fmt::format("synth {}", num_rows), num_rows, num_rows};
  const auto tokenizer = Tokenizer::load(model_folder(model, role));
  std::string tokens;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string name = tokenizer->token_text(id);
    if (name.empty()) continue;  // padding
    const bool is_special = tokenizer->is_special(id);
    const std::string bytes = is_special ? name : tokenizer->token_bytes(id);
    tokens += fmt::format("{} {} {} ", id, is_special ? 's' : 'b', bytes.size()) + bytes;
  }
  return {fingerprint_of_text(tokens), std::min(tokenizer->vocab_size(), num_rows), num_rows};
}

bool drafts_in_target_ids(const RunConfig& config) {
  if (has_no_files(config.model) || has_no_files(config.speculative.model)) return true;
  return needs_no_translation(match_pair(config.model, config.speculative.model));
}

std::shared_ptr<const VocabularyMap> draft_vocabulary(const RunConfig& config) {
  const std::string& draft_name = config.speculative.model;
  if (has_no_files(config.model) || has_no_files(draft_name)) return nullptr;
  const Pair pair = load_pair(config.model, draft_name);
  const VocabularyMatch found = usable_match(config, pair);
  if (needs_no_translation(found)) return nullptr;
  log_info("the draft is translated: {} of the target's {} tokens can be drafted",
           found.num_translatable,
           found.num_target_tokens);
  return std::make_shared<VocabularyMap>(
      pair.target, found.num_target_rows, pair.draft, found.num_draft_rows);
}

void check_draft_vocabulary(const RunConfig& config) {
  if (has_no_files(config.model) || has_no_files(config.speculative.model)) return;
  usable_match(config, load_pair(config.model, config.speculative.model));
}

}  // namespace outrider
