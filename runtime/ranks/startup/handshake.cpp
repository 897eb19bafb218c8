// See handshake.h.
#include "runtime/ranks/startup/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/ranks/startup/rendezvous.h"

namespace outrider {

void fields_of(auto& wire, Is<Fact> auto& fact) { wire.fields(fact.name, fact.value); }

namespace {

// Stands first, so that a program that speaks otherwise is found out.
constexpr uint64_t kMagic = 0x3144454e'5254554full;

struct Hello {
  std::string host;
  std::string problem;
  std::vector<Fact> facts;
};

Hello decode(const Bytes& bytes) {
  Hello hello;
  try {
    WireReader in(bytes);
    if (in.get<uint64_t>() != kMagic) throw Error("no hello");
    in.fields(hello.host, hello.problem, hello.facts);
  } catch (const Error&) {
    hello.problem = "its program begins otherwise than rank 0's: another version of outrider?";
  }
  return hello;
}

std::string difference(const Hello& hello, const Hello& first) {
  for (const Fact& fact : hello.facts) {
    const auto expected = std::find_if(first.facts.begin(),
                                       first.facts.end(),
                                       [&](const Fact& other) { return other.name == fact.name; });
    if (expected == first.facts.end() || expected->value == fact.value) continue;
    return fmt::format("it has {0} {1} where rank 0 has {0} {2}; all ranks need the same",
                       fact.name,
                       fact.value,
                       expected->value);
  }
  return "";
}

// The sentence that all ranks stop with; empty when they may go on. Rank 0's own problem comes
// first: what the others are compared with is then not known.
std::string handshake_error(const RankLayout& layout, const Reports& reports) {
  std::map<int, Hello> hellos;
  for (const auto& [rank, bytes] : reports) hellos[rank] = decode(bytes);
  if (!hellos.at(0).problem.empty())
    return named_problem(layout, 0, hellos.at(0).host, hellos.at(0).problem);
  for (const auto& [rank, hello] : hellos) {
    const std::string other = difference(hello, hellos.at(0));
    const std::string& problem = other.empty() ? hello.problem : other;
    if (!problem.empty()) return named_problem(layout, rank, hello.host, problem);
  }
  const std::string missing = missing_ranks(layout, reports);
  return missing.empty() ? "" : "no word from " + missing + " in time";
}

}  // namespace

void startup_handshake(World& world,
                       const RankLayout& layout,
                       const std::string& problem,
                       const std::vector<Fact>& facts,
                       double timeout_s) {
  const auto judge = [&](const Reports& reports) { return handshake_error(layout, reports); };
  const Bytes hello = wire_bytes(kMagic, world.host(), problem, facts);
  rendezvous_or_stop(world, layout, hello, judge, timeout_s);
}

}  // namespace outrider
