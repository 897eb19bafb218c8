// The draft link: a frame as it comes, and what a whole one may carry: a request to the draft, a
// reply of it. The tokens of a reply's blocks are unpacked as the coordinator does. Over TCP also
// what comes before any frame: the draft's hello, and the welcome.
#include "runtime/ranks/messages/draft_hello.h"
#include "runtime/ranks/messages/round_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/scheduler/packed.h"

namespace {

using namespace outrider;

constexpr uint32_t kEpoch = 0x01020304;

void read_frame(const Bytes& bytes) {
  Frame frame;
  if (decode_frame(bytes, kEpoch, &frame)) FUZZ_CHECK(encode_frame(frame) == bytes);
  const Bytes whole = encode_frame({.epoch = kEpoch, .payload = bytes});
  FUZZ_CHECK(decode_frame(whole, kEpoch, &frame) && frame.payload == bytes);
  FUZZ_CHECK(!decode_frame(whole, kEpoch + 1, &frame));
}

void read_request(const Bytes& bytes) {
  const Bytes again = encode(decode_draft_request(bytes));
  FUZZ_CHECK(encode(decode_draft_request(again)) == again);
}

void read_reply(const Bytes& bytes) {
  const PackedReply reply = decode_draft_reply(bytes);
  DraftReply unpacked{.serial = reply.serial};
  for (const PackedBlock& block : reply.blocks) {
    const auto tokens = testing::unpacked(block.tokens);
    if (!tokens) continue;
    FUZZ_CHECK(tokens->size() == block.tokens.size());
    FUZZ_CHECK(std::ranges::equal(testing::packed(*tokens), block.tokens.bytes));
    unpacked.blocks.push_back({.sequence_id = block.sequence_id, .tokens = *tokens});
  }
  FUZZ_CHECK(decode_draft_reply(encode(unpacked)).blocks.size() == unpacked.blocks.size());
}

void read_hello(const Bytes& bytes) {
  const auto hello = decode_draft_hello(bytes);
  if (!hello || hello->key.empty()) return;  // of another version its version alone is read
  const auto again = decode_draft_hello(encode(*hello));
  FUZZ_CHECK(again && again->key == hello->key && again->name == hello->name);
}

void read_welcome(const Bytes& bytes) {
  const DraftWelcome welcome = decode_draft_welcome(bytes);
  const DraftWelcome again = decode_draft_welcome(encode(welcome));
  FUZZ_CHECK(again.refusal == welcome.refusal && again.terms == welcome.terms);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  fuzz::Input input(data, num_bytes);
  const uint8_t kind = input.byte() % 6;
  const auto rest = std::as_bytes(std::span(input.rest()));
  const Bytes bytes(rest.begin(), rest.end());
  fuzz::takes([&] {
    if (kind == 0) read_frame(bytes);
    if (kind == 1) read_request(bytes);
    if (kind == 2) read_reply(bytes);
    if (kind == 3) read_hello(bytes);
    if (kind == 4) read_welcome(bytes);
    if (kind == 5) decode_draft_speed(bytes);
  });
  return 0;
}
