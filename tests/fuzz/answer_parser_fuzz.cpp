// Answers of models: three bytes choose how tool calls and reasoning are written and what is
// offered, the rest is the text. However it is cut, its pieces add up to the same answer.
#include "http/answers/answer_parser.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

constexpr const char* kToolCalls[] = {"openai",
                                      "qwen3_coder",
                                      "glm45",
                                      "deepseek_v3",
                                      "deepseek_v31",
                                      "kimi_k2",
                                      "mistral",
                                      "mistral_list",
                                      "hermes",
                                      "llama3_json",
                                      "json"};
constexpr const char* kReasoning[] = {"none", "openai_gptoss", "mistral", "qwen3"};

AnswerPieces read_in_pieces(const AnswerParserOptions& options,
                            std::string_view text,
                            size_t piece_bytes) {
  AnswerPieces all;
  const std::unique_ptr<AnswerParser> parser = make_answer_parser(options);
  if (parser == nullptr) return all;
  for (; !text.empty(); text.remove_prefix(std::min(piece_bytes, text.size())))
    all.append(parser->push(text.substr(0, piece_bytes)));
  all.append(parser->finish());
  FUZZ_CHECK(static_cast<size_t>(parser->num_calls()) >= all.calls.size());
  return all;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static const auto functions = std::make_shared<const OfferedFunctions>(
      OfferedFunctions{{"f", {"city"}}, {"get_weather", {}}});
  fuzz::Input input(data, num_bytes);
  AnswerParserOptions options;
  const char* tool_calls = kToolCalls[input.byte() % std::size(kToolCalls)];
  options.formats =
      choose_answer_formats({}, tool_calls, kReasoning[input.byte() % std::size(kReasoning)]);
  const uint8_t flags = input.byte();
  if ((flags & 1) == 0) options.functions = functions;
  options.begins_in_reasoning = (flags & 2) != 0 && options.formats.reasoning != nullptr;
  options.parallel = (flags & 4) == 0;
  const AnswerPieces whole = read_in_pieces(options, input.rest(), num_bytes);
  for (const size_t piece_bytes : {1, 2, 7}) {
    const AnswerPieces pieces = read_in_pieces(options, input.rest(), piece_bytes);
    FUZZ_CHECK(pieces.reasoning == whole.reasoning && pieces.content == whole.content);
    FUZZ_CHECK(pieces.calls.size() == whole.calls.size());
    for (size_t i = 0; i < whole.calls.size(); ++i) {
      FUZZ_CHECK(pieces.calls[i].name == whole.calls[i].name);
      FUZZ_CHECK(pieces.calls[i].arguments == whole.calls[i].arguments);
    }
  }
  return 0;
}
