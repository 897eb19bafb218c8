// An answer of `outrider chat` as it comes: the events of a stream to pieces of text that know
// where they come from, and to the figures of the line below. Pure: the caller says what time it
// is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// Of a token: proposed by the draft and accepted, the model's own where the draft was wrong, the
// model's own behind a draft that was accepted whole, made without a draft.
enum class PieceOrigin : uint8_t { kAccepted, kCorrected, kBonus, kPlain };
constexpr size_t kNumPieceOrigins = 4;

const char* name_of(PieceOrigin origin);

struct AnswerPiece {
  std::string text;
  PieceOrigin origin = PieceOrigin::kPlain;
};

class ChatAnswer {
 public:
  // The data of one event: the text it brought, by tokens where the server tells them. Throws Error
  // for what the server reports, and for what is no event of a chat.
  std::vector<AnswerPiece> take(double time_s, std::string_view data);

  bool is_whole() const { return is_whole_; }  // the stream's last event has come
  const std::string& text() const { return text_; }
  // "41 tokens, 23.4 tokens/s, 2.31 tokens per round, 71% accepted"; empty when none came.
  std::string figures() const;

 private:
  void count(double time_s, PieceOrigin origin);

  std::string text_;
  size_t num_characters_ = 0;  // of text_, as the server counts them
  std::array<int64_t, kNumPieceOrigins> counts_ = {};
  int64_t num_rounds_ = 0;
  bool in_round_ = false;
  int64_t num_tokens_ = 0;  // as usage has them, where no origins came
  double first_s_ = -1;
  double last_s_ = -1;
  bool is_whole_ = false;
};

// What text does to a terminal stays text: control characters but tabs and ends of lines are left
// out.
std::string without_controls(std::string_view text);

// The escape sequence before text of this origin, in the colours of the chat page, and that after
// all text.
const char* color_of(PieceOrigin origin);
constexpr const char* kDim = "\033[2m";
constexpr const char* kNoColor = "\033[0m";

}  // namespace outrider
