// Chat templates, as source. A fixed request is rendered within a budget; what came from it lies in
// spans that are in order and inside the prompt.
#include "models/text/chat_template.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr char kRequest[] =
    R"({"messages":[{"role":"system","content":"sys"},{"role":"user","content":"h\u00e9 </s>"},)"
    R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":)"
    R"([1,2.5,null]}}}]},{"role":"tool","content":"result"}],"tools":[{"type":"function",)"
    R"("function":{"name":"f"}}],"bos_token":"<s>","add_generation_prompt":true})";

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace outrider;
  const RenderLimits limits{
      .max_output_bytes = 1 << 16, .max_steps = 20'000, .now_unix_s = 1'700'000'000};
  fuzz::takes([&] {
    const std::string source(reinterpret_cast<const char*>(data), num_bytes);
    const RenderedPrompt prompt = ChatTemplate::parse(source).render(kRequest, limits);
    FUZZ_CHECK(prompt.text.size() <= limits.max_output_bytes);
    size_t at = 0;
    for (const TextSpan& span : prompt.literal_spans) {
      FUZZ_CHECK(span.begin < span.end && span.end <= prompt.text.size());
      FUZZ_CHECK(at == 0 || span.begin > at);
      at = span.end;
    }
  });
  return 0;
}
