// See grammar_engine.h. The engine of a build without xgrammar: there is none.
#include "runtime/base/error.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

struct GrammarEngine::Impl {};

bool GrammarEngine::is_built() { return false; }

GrammarEngine::GrammarEngine(const std::vector<std::string>&, int32_t) {
  throw Error("this program was built without xgrammar, which structured output needs");
}

GrammarEngine::~GrammarEngine() = default;
std::vector<std::string> GrammarEngine::check(const Grammar&, std::chrono::milliseconds) const {
  return {};
}
bool GrammarEngine::knows(const Grammar&) const { return false; }
void GrammarEngine::prepare(const Grammar&) const {}
std::shared_ptr<const GrammarMask> GrammarEngine::mask(const Grammar&) const { return nullptr; }

}  // namespace outrider
