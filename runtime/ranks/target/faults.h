// Faults on purpose, for tests and drills: one decision changed on one rank, NaN in the logits or
// in the KV memory of one sequence. Read by every target rank at start from OUTRIDER_FAULT; without
// the variable nothing here does anything. Used by TargetRank on the round's thread.
//
// OUTRIDER_FAULT = fault [";" fault]...
//   flip_decision:rank=R,round=N[,field=next_token|accepted]
//       In the first round from N on that decides a token (accepted: that judges a draft token),
//       rank R decides something else than its peers.
//   nan_logits:sequence=S,output=N[,rank=R]  and  nan_logits:sequence=S,prompt=N[,rank=R]
//       One NaN, on rank R (0 unless given), in the logits that decide output token N or score
//       prompt token N of request S; tokens count from 0, requests from 1 in order of arrival.
//   nan_kv:sequence=S,position=N[,rank=R]
//       The keys and values of position N become NaN on rank R after the step that computed them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/round.h"

namespace outrider {

class Faults {
 public:
  static constexpr const char* kVariable = "OUTRIDER_FAULT";

  Faults() = default;
  // What the text arms on this rank. Throws Error with one sentence for a text that is not of the
  // grammar, also when the fault is another rank's.
  static Faults parse(std::string_view text, int rank, int num_ranks);
  // From the environment; says in the log what it arms.
  static Faults from_environment(int rank, int num_ranks);

  bool any() const { return !armed_.empty(); }

  // Changes the decision when the time has come. At most once per fault.
  void flip(const RoundPlan& plan, RoundDecision* decision);
  // Whether the logits that judge the token at this position get a NaN.
  bool spoils_logits(uint64_t sequence_id, int32_t position, int32_t num_prompt_tokens) const;
  bool spoils_kv(uint64_t sequence_id, int32_t position) const;

  enum class Kind : uint8_t { kFlipDecision, kNanLogits, kNanKv };
  struct Fault {
    Kind kind = Kind::kFlipDecision;
    int32_t rank = 0;
    uint64_t round = 0;
    bool flips_accepted = false;
    uint64_t sequence_id = 0;
    int32_t position = 0;    // of the output, or of the whole text
    bool in_output = false;  // which of the two
    bool spent = false;
  };

 private:
  std::vector<Fault> armed_;
};

}  // namespace outrider
