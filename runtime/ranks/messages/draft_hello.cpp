// See draft_hello.h.
#include "runtime/ranks/messages/draft_hello.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr uint32_t kHelloMagic = 0x4f4c484f;    // "OHLO"
constexpr uint32_t kWelcomeMagic = 0x4d4c574f;  // "OWLM"
constexpr size_t kMostNameBytes = 200;
constexpr int32_t kMostOfAny = 1 << 28;

constexpr std::array kTerms = {&DraftTerms::target_vocab_size,
                               &DraftTerms::num_candidates,
                               &DraftTerms::longest_draft_len,
                               &DraftTerms::max_model_len,
                               &DraftTerms::max_rows,
                               &DraftTerms::blocks_per_sequence,
                               &DraftTerms::num_blocks,
                               &DraftTerms::block_size,
                               &DraftTerms::max_num_seqs};

// It comes from outside and goes into log lines.
std::string printable(std::string text) {
  text.resize(std::min(text.size(), kMostNameBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

Bytes encode(const DraftHello& hello) {
  return wire_bytes(
      kHelloMagic, kDraftLinkVersion, hello.key, hello.vocabulary, hello.num_rows, hello.name);
}

std::optional<DraftHello> decode_draft_hello(const Bytes& bytes) try {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kHelloMagic) return std::nullopt;
  DraftHello hello{.version = in.get<uint16_t>()};
  if (hello.version != kDraftLinkVersion) return hello;
  in.fields(hello.key, hello.vocabulary, hello.num_rows, hello.name);
  hello.name = printable(std::move(hello.name));
  in.expect_end();
  return hello;
} catch (const Error&) {
  return std::nullopt;
}

Bytes encode(const DraftWelcome& welcome) {
  WireWriter out;
  out.fields(kWelcomeMagic, kDraftLinkVersion, welcome.refusal);
  if (!welcome.refusal.empty()) return out.take();
  out.put(welcome.epoch);
  for (const auto term : kTerms) out.put(welcome.terms.*term);
  return out.take();
}

DraftWelcome decode_draft_welcome(const Bytes& bytes) {
  WireReader in(bytes);
  if (in.get<uint32_t>() != kWelcomeMagic) throw Error("who answers there is no job of outrider's");
  const auto version = in.get<uint16_t>();
  DraftWelcome welcome{.refusal = printable(in.get<std::string>())};
  if (!welcome.refusal.empty()) return welcome;
  if (version != kDraftLinkVersion) throw Error("the job speaks another version");
  welcome.epoch = in.get<uint32_t>();
  for (const auto term : kTerms) {
    welcome.terms.*term = in.get<int32_t>();
    if (welcome.terms.*term < 1 || welcome.terms.*term > kMostOfAny)
      throw Error("the job's terms are no sizes that a draft could have");
  }
  in.expect_end();
  return welcome;
}

Bytes encode_draft_speed(uint64_t step_us) { return wire_bytes(step_us); }

uint64_t decode_draft_speed(const Bytes& payload) {
  return payload.size() == sizeof(uint64_t) ? WireReader(payload).get<uint64_t>() : 0;
}

}  // namespace outrider
