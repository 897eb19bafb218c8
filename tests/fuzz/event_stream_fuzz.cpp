// Server-sent events as clients of this API read them (`outrider chat`, `bench serve`): any cut of
// the bytes into pieces gives the same events, whatever the server says.
#include "http/wire/event_reader.h"
#include "runtime/commands/bench/serve/serve_stream.h"
#include "runtime/commands/chat/chat_answer.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

std::vector<std::string> events_of(std::string_view bytes, size_t piece_bytes) {
  std::vector<std::string> events;
  EventReader reader;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece_bytes, bytes.size()))) {
    reader.take(bytes.substr(0, piece_bytes), [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
  }
  return events;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  fuzz::Input input(data, num_bytes);
  const int status = input.byte() % 4 == 0 ? 500 : 200;
  const std::vector<std::string> events = events_of(input.rest(), num_bytes);
  for (const size_t piece_bytes : {1, 3})
    FUZZ_CHECK(events_of(input.rest(), piece_bytes) == events);

  RequestRecord record;
  CompletionStream stream(&record);
  stream.begin(status);
  stream.receive(1, input.rest());
  stream.finish(2);
  FUZZ_CHECK(status == 200 || !record.failure.empty());

  ChatAnswer answer;
  for (const std::string& event : events) fuzz::takes([&] { answer.take(1, event); });
  answer.figures();
  FUZZ_CHECK(without_controls(answer.text()).find('\033') == std::string::npos);
  return 0;
}
