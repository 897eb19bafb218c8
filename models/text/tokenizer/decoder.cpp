// Decoding stage by stage, incremental; any thread, the state belongs to one sequence.
#include "models/text/tokenizer/decoder.h"

#include <array>
#include <utility>
#include <vector>

#include "models/text/tokenizer/unicode.h"

namespace outrider {
namespace {

// Code point of each byte (GPT-2's bytes_to_unicode): printable Latin-1 stands for itself, the
// others follow from U+0100 on in order.
struct ByteAlphabet {
  std::array<std::string, 256> character;
  std::array<int, 512> byte_of{};  // by code point, -1 when it stands for none

  ByteAlphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t c = is_printable ? static_cast<char32_t>(byte) : next++;
      unicode::append_utf8(character[static_cast<size_t>(byte)], c);
      byte_of[c] = byte;
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// The value of "<0xAB>", else -1; hexadecimal digits of either case.
int byte_token_value(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string replaced(std::string_view text, const PatternMatcher& matcher, std::string_view by) {
  std::string out;
  size_t done = 0;
  matcher.for_each_match(text, [&](size_t begin, size_t end) {
    out.append(text.substr(done, begin - done)).append(by);
    done = end;
  });
  return out.append(text.substr(done));
}

using Tokens = std::vector<std::string>;
using State = DecodeState::Stage;

// The whole characters of the bytes so far; the beginning of one that the next token may finish
// stays.
std::string take_characters(State& state, std::string_view bytes) {
  using Kind = unicode::Utf8Unit::Kind;
  state.pending += bytes;
  const std::string& text = state.pending;
  std::string out;
  size_t pos = 0;
  while (pos < text.size()) {
    const unicode::Utf8Unit unit = unicode::utf8_unit_at(text, pos);
    if (unit.kind == Kind::kIncomplete) break;
    if (unit.kind == Kind::kCharacter) {
      out.append(text, pos, unit.length);
    } else {
      out += unicode::kReplacement;
    }
    pos += unit.length;
  }
  state.pending.erase(0, pos);
  return out;
}

void run_byte_level(State& state, bool is_end, Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += take_characters(state, byte_level_bytes(token));
  // At most one unfinished character is left.
  if (is_end && !state.pending.empty()) text += unicode::kReplacement;
  tokens.assign(1, std::move(text));
}

// A run of byte tokens is text when it is UTF-8 as a whole, else one U+FFFD per byte.
void flush_byte_run(State& state, Tokens& out) {
  std::string run;
  run.swap(state.pending);
  if (run.empty()) return;
  if (unicode::is_valid_utf8(run)) {
    out.push_back(std::move(run));
  } else {
    out.insert(out.end(), run.size(), std::string(unicode::kReplacement));
  }
}

void run_byte_fallback(State& state, bool is_end, Tokens& tokens) {
  Tokens out;
  for (std::string& token : tokens) {
    const int byte = byte_token_value(token);
    if (byte >= 0) {
      state.pending.push_back(static_cast<char>(byte));
      continue;
    }
    flush_byte_run(state, out);
    out.push_back(std::move(token));
  }
  if (is_end) flush_byte_run(state, out);
  tokens = std::move(out);
}

// How many times `mark` stands at the start or end of the text, at most `limit`.
size_t count_at_start(std::string_view text, std::string_view mark, size_t limit) {
  size_t count = 0;
  for (; count < limit && text.starts_with(mark); ++count) text.remove_prefix(mark.size());
  return count;
}
size_t count_at_end(std::string_view text, std::string_view mark, size_t limit) {
  size_t count = 0;
  for (; count < limit && text.ends_with(mark); ++count) text.remove_suffix(mark.size());
  return count;
}

void strip_token(const DecoderStage& spec, std::string& token) {
  const std::string& mark = spec.pattern.text;
  token.erase(0, mark.size() * count_at_start(token, mark, spec.num_start));
  token.resize(token.size() - mark.size() * count_at_end(token, mark, spec.num_stop));
}

// The token comes in chunks: the marks at the end of one wait for what follows.
void strip_chunk(const DecoderStage& spec, State& state, std::string& chunk) {
  const std::string& mark = spec.pattern.text;
  if (state.stripping) {
    const size_t count = count_at_start(chunk, mark, spec.num_start - state.num_stripped);
    chunk.erase(0, mark.size() * count);
    state.num_stripped += count;
    state.stripping = chunk.empty() && state.num_stripped < spec.num_start;
  }
  chunk.insert(0, state.pending);
  const size_t num_held = mark.size() * count_at_end(chunk, mark, spec.num_stop);
  state.pending = chunk.substr(chunk.size() - num_held);
  chunk.resize(chunk.size() - num_held);
}

}  // namespace

const std::string& byte_level_character(unsigned char byte) {
  return byte_alphabet().character[byte];
}

std::string byte_level_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_level_character(static_cast<unsigned char>(byte));
  return text;
}

std::string byte_level_bytes(std::string_view token) {
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const unicode::CodePoint point = unicode::code_point_at(token, pos);
    const int byte = point.value < 512 ? byte_alphabet().byte_of[point.value] : -1;
    if (byte < 0) return std::string(token);
    bytes.push_back(static_cast<char>(byte));
    pos += point.num_bytes;
  }
  return bytes;
}

TokenDecoder::TokenDecoder(const DecoderSpec& spec) : joins_with_spaces_(spec.joins_with_spaces) {
  for (const DecoderStage& stage : spec.stages) {
    using Kind = DecoderStage::Kind;
    const bool finds = stage.kind == Kind::kReplace || stage.kind == Kind::kMetaspace;
    stages_.push_back({stage, finds ? std::make_unique<PatternMatcher>(stage.pattern) : nullptr});
  }
}

void TokenDecoder::run(const Stage& stage, DecodeState::Stage& state, bool is_end, Tokens& tokens) {
  const DecoderStage& spec = stage.spec;
  switch (spec.kind) {
    case DecoderStage::Kind::kByteLevel:
      return run_byte_level(state, is_end, tokens);
    case DecoderStage::Kind::kByteFallback:
      return run_byte_fallback(state, is_end, tokens);
    case DecoderStage::Kind::kReplace:
      for (std::string& token : tokens) token = replaced(token, *stage.matcher, spec.content);
      return;
    case DecoderStage::Kind::kStrip:
      for (std::string& token : tokens) {
        if (spec.is_fused) {
          strip_chunk(spec, state, token);
        } else {
          strip_token(spec, token);
        }
      }
      return;
    case DecoderStage::Kind::kMetaspace:
      for (std::string& token : tokens) {
        const bool drops = spec.drops_first_marks && (spec.is_fused || !state.started);
        token = replaced(token, *stage.matcher, drops ? "" : " ");
        state.started = true;
      }
      return;
    case DecoderStage::Kind::kFuse:
      return;
  }
}

void TokenDecoder::run_all(DecodeState& state,
                           bool is_end,
                           Tokens& tokens,
                           std::string& out) const {
  state.stages.resize(stages_.size());
  for (size_t i = 0; i < stages_.size(); ++i) run(stages_[i], state.stages[i], is_end, tokens);
  for (const std::string& token : tokens) out += token;
}

void TokenDecoder::push(DecodeState& state, std::string_view token, std::string& out) const {
  if (joins_with_spaces_ && state.started) out += ' ';
  state.started = true;
  Tokens tokens{std::string(token)};
  run_all(state, false, tokens, out);
}

void TokenDecoder::flush(DecodeState& state, std::string& out) const {
  Tokens none;
  run_all(state, true, none, out);
  state = DecodeState{};
}

std::string TokenDecoder::bytes_of(std::string_view token) const {
  std::string text(token);
  for (const Stage& stage : stages_) {
    const DecoderStage& spec = stage.spec;
    if (spec.kind == DecoderStage::Kind::kByteLevel) {
      text = byte_level_bytes(text);
    } else if (spec.kind == DecoderStage::Kind::kByteFallback) {
      if (const int byte = byte_token_value(text); byte >= 0)
        return std::string(1, static_cast<char>(byte));
    } else if (spec.kind == DecoderStage::Kind::kReplace) {
      text = replaced(text, *stage.matcher, spec.content);
    } else if (spec.kind == DecoderStage::Kind::kMetaspace) {
      text = replaced(text, *stage.matcher, spec.is_fused && spec.drops_first_marks ? "" : " ");
    } else if (spec.kind == DecoderStage::Kind::kStrip && !spec.is_fused) {
      strip_token(spec, text);
    }
  }
  return text;
}

}  // namespace outrider
