// Decoding of byte-level and of SentencePiece-style tokens, incremental; any thread, the state
// belongs to one sequence.
#include "models/text/tokenizer/decoder.h"

#include <array>
#include <utility>

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

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t pos = 0;
  for (size_t hit = text.find(from); hit != std::string_view::npos; hit = text.find(from, pos)) {
    out.append(text.substr(pos, hit - pos)).append(to);
    pos = hit + from.size();
  }
  return out.append(text.substr(pos));
}

}  // namespace

const std::string& byte_level_character(unsigned char byte) {
  return byte_alphabet().character[byte];
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

TokenDecoder::TokenDecoder(DecoderSpec spec) : spec_(std::move(spec)) {}

std::string TokenDecoder::replaced(std::string_view token) const {
  std::string text(token);
  for (const auto& [from, to] : spec_.replacements) text = replace_all(text, from, to);
  return text;
}

// Byte level: everything but the beginning of a character the next token may finish.
void TokenDecoder::push_bytes(DecodeState& state, std::string_view bytes, std::string& out) const {
  using Kind = unicode::Utf8Unit::Kind;
  state.pending += bytes;
  const std::string& text = state.pending;
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
}

void TokenDecoder::emit_stripped(DecodeState& state,
                                 std::string_view text,
                                 std::string& out) const {
  while (state.stripping && !text.empty()) {
    const std::string& drop = spec_.strip_content;
    if (state.num_stripped < spec_.num_strip_start && text.substr(0, drop.size()) == drop) {
      text.remove_prefix(drop.size());
      ++state.num_stripped;
    } else {
      state.stripping = false;
    }
  }
  out += text;
}

// A run of byte tokens is text when it is UTF-8 as a whole, else one U+FFFD per byte.
void TokenDecoder::flush_byte_run(DecodeState& state, std::string& out) const {
  std::string run;
  run.swap(state.pending);
  if (unicode::is_valid_utf8(run)) {
    emit_stripped(state, run, out);
    return;
  }
  for (size_t i = 0; i < run.size(); ++i) emit_stripped(state, unicode::kReplacement, out);
}

void TokenDecoder::push_piece(DecodeState& state, std::string_view token, std::string& out) const {
  const std::string text = replaced(token);
  const int byte = spec_.byte_fallback ? byte_token_value(text) : -1;
  if (byte >= 0) {
    state.pending.push_back(static_cast<char>(byte));
    return;
  }
  flush_byte_run(state, out);
  emit_stripped(state, text, out);
}

void TokenDecoder::push(DecodeState& state, std::string_view token, std::string& out) const {
  const bool is_first = !state.started;
  state.started = true;
  switch (spec_.kind) {
    case DecoderSpec::Kind::kByteLevel:
      push_bytes(state, byte_level_bytes(token), out);
      return;
    case DecoderSpec::Kind::kPieces:
      push_piece(state, token, out);
      return;
    case DecoderSpec::Kind::kMetaspace:
      out += replace_all(token, spec_.metaspace, is_first && spec_.metaspace_prepended ? "" : " ");
      return;
    case DecoderSpec::Kind::kJoinWithSpaces:
      if (!is_first) out += ' ';
      out += token;
      return;
  }
}

void TokenDecoder::flush(DecodeState& state, std::string& out) const {
  if (spec_.kind == DecoderSpec::Kind::kByteLevel) {
    // push_bytes leaves at most one unfinished character.
    if (!state.pending.empty()) out += unicode::kReplacement;
  } else {
    flush_byte_run(state, out);
  }
  state = DecodeState{};
}

std::string TokenDecoder::bytes_of(std::string_view token) const {
  if (spec_.kind == DecoderSpec::Kind::kByteLevel) return byte_level_bytes(token);
  if (spec_.kind == DecoderSpec::Kind::kMetaspace) return replace_all(token, spec_.metaspace, " ");
  std::string text = replaced(token);
  const int byte = spec_.byte_fallback ? byte_token_value(text) : -1;
  return byte < 0 ? text : std::string(1, static_cast<char>(byte));
}

}  // namespace outrider
