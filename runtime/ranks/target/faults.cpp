// See faults.h.
#include "runtime/ranks/target/faults.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr size_t kMaxFaults = 64;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(fmt::format("{}: {}", Faults::kVariable, what));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// One fault's text: its name and its keys, each taken once.
class FaultText {
 public:
  explicit FaultText(std::string_view text) : text_(text) {
    const size_t colon = text.find(':');
    name_ = text.substr(0, colon);
    if (colon == std::string_view::npos) return;
    for (std::string_view pair : split(text.substr(colon + 1), ',')) {
      const size_t equals = pair.find('=');
      if (equals == std::string_view::npos) {
        refuse(fmt::format("'{}' in '{}' is not key=value", pair, text));
      }
      if (!values_.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second) {
        refuse(fmt::format("'{}' stands twice in '{}'", pair.substr(0, equals), text));
      }
    }
  }

  std::string_view name() const { return name_; }
  bool has(std::string_view key) const { return values_.contains(key); }

  std::string_view take(std::string_view key) {
    const auto found = values_.find(key);
    if (found == values_.end()) refuse(fmt::format("'{}' lacks {}=", text_, key));
    const std::string_view value = found->second;
    values_.erase(found);
    return value;
  }

  int32_t take_number(std::string_view key, int32_t least) {
    const std::string_view value = take(key);
    int32_t number = 0;
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem != std::errc() || end != value.data() + value.size() || number < least) {
      refuse(fmt::format("{}={} in '{}' is not a number from {} on", key, value, text_, least));
    }
    return number;
  }

  void expect_end() const {
    if (values_.empty()) return;
    refuse(fmt::format("'{}' is no key of {}", values_.begin()->first, name_));
  }

 private:
  std::string_view text_;
  std::string_view name_;
  std::map<std::string_view, std::string_view> values_;
};

Faults::Fault read_flip(FaultText& text) {
  Faults::Fault fault;
  fault.kind = Faults::Kind::kFlipDecision;
  fault.rank = text.take_number("rank", 0);
  fault.round = static_cast<uint64_t>(text.take_number("round", 1));
  if (text.has("field")) {
    const std::string_view field = text.take("field");
    if (field != "next_token" && field != "accepted") {
      refuse(fmt::format("field={} is neither next_token nor accepted", field));
    }
    fault.flips_accepted = field == "accepted";
  }
  return fault;
}

Faults::Fault read_nan(FaultText& text, Faults::Kind kind) {
  Faults::Fault fault;
  fault.kind = kind;
  fault.sequence_id = static_cast<uint64_t>(text.take_number("sequence", 1));
  if (kind == Faults::Kind::kNanKv) {
    fault.position = text.take_number("position", 0);
  } else {
    fault.in_output = !text.has("prompt");
    // The first prompt token is never judged.
    fault.position =
        fault.in_output ? text.take_number("output", 0) : text.take_number("prompt", 1);
  }
  if (text.has("rank")) fault.rank = text.take_number("rank", 0);
  return fault;
}

Faults::Fault read_fault(FaultText& text) {
  if (text.name() == "flip_decision") return read_flip(text);
  if (text.name() == "nan_logits") return read_nan(text, Faults::Kind::kNanLogits);
  if (text.name() == "nan_kv") return read_nan(text, Faults::Kind::kNanKv);
  refuse(fmt::format("'{}' is none of flip_decision, nan_logits, nan_kv", text.name()));
}

}  // namespace

Faults Faults::parse(std::string_view text, int rank, int num_ranks) {
  Faults faults;
  const std::vector<std::string_view> parts = split(text, ';');
  if (parts.size() > kMaxFaults) refuse(fmt::format("more than {} faults", kMaxFaults));
  for (std::string_view part : parts) {
    FaultText fault_text(part);
    const Fault fault = read_fault(fault_text);
    fault_text.expect_end();
    if (fault.rank >= num_ranks) {
      refuse(fmt::format("'{}' names rank {} of {} target ranks", part, fault.rank, num_ranks));
    }
    if (fault.rank == rank) faults.armed_.push_back(fault);
  }
  return faults;
}

Faults Faults::from_environment(int rank, int num_ranks) {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return {};
  Faults faults = parse(text, rank, num_ranks);
  if (faults.any()) {
    log_warning("{}={}: rank {} WILL MISBEHAVE ON PURPOSE; this is no server for users",
                kVariable,
                text,
                rank);
  }
  return faults;
}

void Faults::flip(const RoundPlan& plan, RoundDecision* decision) {
  for (Fault& fault : armed_) {
    if (fault.kind != Kind::kFlipDecision || fault.spent || plan.round < fault.round) continue;
    for (size_t i = 0; i < decision->sequences.size() && !fault.spent; ++i) {
      SequenceDecision& decided = decision->sequences[i];
      if (decided.failed || decided.next_token < 0) continue;
      if (!fault.flips_accepted) {
        decided.next_token ^= 1;
      } else if (plan.sequences[i].draft.empty()) {
        continue;
      } else {
        // Another count of what was proposed, so that this rank could go on with it.
        decided.num_accepted += decided.num_accepted > 0 ? -1 : 1;
      }
      fault.spent = true;
      log_warning("{}: decision of round {} changed on purpose", kVariable, plan.round);
    }
  }
}

bool Faults::spoils_logits(uint64_t sequence_id,
                           int32_t position,
                           int32_t num_prompt_tokens) const {
  return std::any_of(armed_.begin(), armed_.end(), [&](const Fault& fault) {
    return fault.kind == Kind::kNanLogits && fault.sequence_id == sequence_id &&
           position == fault.position + (fault.in_output ? num_prompt_tokens : 0);
  });
}

bool Faults::spoils_kv(uint64_t sequence_id, int32_t position) const {
  return std::any_of(armed_.begin(), armed_.end(), [&](const Fault& fault) {
    return fault.kind == Kind::kNanKv && fault.sequence_id == sequence_id &&
           position == fault.position;
  });
}

}  // namespace outrider
