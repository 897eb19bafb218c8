// See grammar_loader.h.
#include "runtime/ranks/loading/grammar_loader.h"

#include <algorithm>
#include <string>
#include <vector>

#include "http/answers/answer_format.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

bool has_engine(const std::string& model) {
  return GrammarEngine::is_built() && !has_no_files(model);
}

std::shared_ptr<const GrammarEngine> engine_of(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::string> token_bytes;
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), vocab_size); ++id) {
    std::string bytes = tokenizer.token_bytes(id);
    if (tokenizer.is_special(id) && !is_tool_call_marker(bytes)) bytes.clear();
    token_bytes.push_back(std::move(bytes));
  }
  return std::make_shared<const GrammarEngine>(token_bytes, vocab_size);
}

}  // namespace

std::shared_ptr<const GrammarEngine> load_grammar_engine(const RunConfig& config) {
  if (!has_engine(config.model)) return nullptr;
  return make_grammar_engine(config, *Tokenizer::load(model_folder(config.model, Role::kTarget)));
}

std::shared_ptr<const GrammarEngine> make_grammar_engine(const RunConfig& config,
                                                         const Tokenizer& tokenizer) {
  if (!has_engine(config.model)) return nullptr;
  return engine_of(tokenizer, model_config_of(config.model, Role::kTarget).vocab_size);
}

std::shared_ptr<const GrammarEngine> load_grammar_engine_of_draft(const std::string& model,
                                                                  int32_t target_vocab_size) {
  if (!has_engine(model)) return nullptr;
  return engine_of(*Tokenizer::load(model_folder(model, Role::kDraft)), target_vocab_size);
}

}  // namespace outrider
