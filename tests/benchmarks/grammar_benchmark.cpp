// What a grammar costs: compiling it, and the mask of a row, while a text of the grammar is written
// token by token. The vocabulary is made up: bytes, numbers, punctuation as tokenizers join it, and
// words with and without a space before them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {
namespace {

constexpr size_t kVocabSize = 128000;
constexpr int32_t kEnd = 0;

const char* const kOrder = R"({"type":"object","required":["name","email","items","total"],
  "properties":{"name":{"type":"string"},"email":{"type":"string","maxLength":40},
  "items":{"type":"array","items":{"type":"object","required":["product","quantity"],
    "properties":{"product":{"type":"string"},"quantity":{"type":"integer"},
    "tags":{"type":"array","items":{"enum":["new","used","gift"]}}}}},
  "total":{"type":"number"},"note":{"anyOf":[{"type":"string"},{"type":"null"}]}}})";

std::vector<std::string> vocabulary() {
  std::mt19937 random(7);
  std::vector<std::string> tokens = {""};
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* joined : {"\":", "\": ", "\",", "\", \"", "{\"", "\"}", "},", "[{", "}]", "]}", "  "})
    tokens.emplace_back(joined);
  for (int number = 10; number < 1000; ++number) tokens.push_back(std::to_string(number));
  while (tokens.size() < kVocabSize) {
    std::string word = random() % 2 == 0 ? " " : "";
    for (size_t i = 2 + random() % 8; i > 0; --i) word += static_cast<char>('a' + random() % 26);
    tokens.push_back(std::move(word));
  }
  return tokens;
}

const GrammarEngine& engine() {
  static const GrammarEngine made(vocabulary(), static_cast<int32_t>(kVocabSize));
  return made;
}

std::vector<int32_t> allowed_in(const std::vector<uint64_t>& words) {
  std::vector<int32_t> ids;
  for (size_t w = 0; w < words.size(); ++w) {
    for (uint64_t bits = words[w]; bits != 0; bits &= bits - 1)
      ids.push_back(static_cast<int32_t>(64 * w) + __builtin_ctzll(bits));
  }
  return ids;
}

// One row per iteration, each one token behind the last; a text that is over begins anew.
void mask_row(benchmark::State& state, GrammarKind kind, const char* text) {
  const Grammar grammar{kind, text, {kEnd}};
  const auto mask = engine().mask(grammar);
  const VocabShard shard{0, static_cast<int32_t>(kVocabSize), static_cast<int32_t>(kVocabSize)};
  std::vector<uint64_t> words(AllowedBits::num_words(shard));
  std::vector<int32_t> tokens;
  std::vector<double> row_us;
  std::mt19937 random(3);
  for (auto _ : state) {
    std::fill(words.begin(), words.end(), ~uint64_t{0});
    AllowedBits bits(shard, words);
    const auto begin = std::chrono::steady_clock::now();
    mask->restrict_next({.committed = tokens, .num_prompt_tokens = 0, .drafted = {}}, bits);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    row_us.push_back(took.count());
    state.SetIterationTime(took.count() * 1e-6);
    const std::vector<int32_t> next = allowed_in(words);
    tokens.push_back(next[random() % next.size()]);
    if (tokens.back() == kEnd || tokens.size() > 400) tokens.clear();
  }
  std::sort(row_us.begin(), row_us.end());
  state.counters["median_us"] = row_us[row_us.size() / 2];
  state.counters["p99_us"] = row_us[row_us.size() * 99 / 100];
}

void compile(benchmark::State& state, GrammarKind kind, const char* text) {
  int64_t number = 0;
  for (auto _ : state) {
    // Another text each time, or it would be found compiled.
    const std::string fresh = std::string(text) + std::string(static_cast<size_t>(++number), ' ');
    benchmark::DoNotOptimize(engine().mask({kind, fresh, {kEnd}}));
  }
}

void add_cases() {
  if (!GrammarEngine::is_built()) return;
  const auto add = [](const char* name, GrammarKind kind, const char* text) {
    benchmark::RegisterBenchmark(
        (std::string("mask_row/") + name).c_str(),
        [=](benchmark::State& state) { mask_row(state, kind, text); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(
        (std::string("compile/") + name).c_str(),
        [=](benchmark::State& state) { compile(state, kind, text); })
        ->Unit(benchmark::kMillisecond);
  };
  add("json_schema", GrammarKind::kJsonSchema, kOrder);
  add("compact_json", GrammarKind::kCompactJson, kOrder);
  add("any_object", GrammarKind::kJsonSchema, R"({"type":"object","additionalProperties":true})");
}

const bool kAdded = (add_cases(), true);

}  // namespace
}  // namespace outrider
