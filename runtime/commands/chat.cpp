// chat: a conversation with a server in a terminal, or lines of a pipe answered one by one. Loads
// no model; all it knows of the server is its API. One thread reads and prints; while an answer
// comes another one talks to the server, so that Ctrl-C need not wait for a byte.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>

#include "http/wire/api_error.h"
#include "http/wire/event_reader.h"
#include "http/wire/http_client.h"
#include "runtime/base/settings/options.h"
#include "runtime/commands/chat/chat_answer.h"
#include "runtime/commands/commands.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kExitFailed = 1;
constexpr auto kInterruptSlice = std::chrono::milliseconds(20);
constexpr double kNotGiven = -1;

volatile std::sig_atomic_t interrupted = 0;

// Without SA_RESTART: a wait at the prompt ends too.
void watch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
}

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;
  std::string system;
  double temperature = kNotGiven;
  int32_t max_tokens = 0;
  int32_t seed = -1;
};

std::vector<Option> chat_options(ChatOptions* o) {
  return {
      text_option("url", &o->url, "the server"),
      text_option("api_key", &o->api_key, "its key; default: OPENAI_API_KEY"),
      with_aliases(text_option("model", &o->model, "name of a model; default: the server's"),
                   {"-m"}),
      text_option("system", &o->system, "system prompt"),
      number_option("temperature", &o->temperature, 0, 2, "0 = greedy; default: the server's"),
      integer_option(
          "max_tokens", &o->max_tokens, 1, INT32_MAX, "of an answer; default: what fits"),
      integer_option("seed", &o->seed, 0, INT32_MAX, "of every answer; default: a random one"),
  };
}

ChatOptions read_options(const std::vector<std::string>& arguments) {
  ChatOptions options;
  const std::vector<Option> rows = chat_options(&options);
  if (asks_for_help(arguments)) throw HelpAsked{.own = help_of(option_rows(rows)), .common = {}};
  const ParsedArguments parsed = parse_arguments(arguments, option_rows(rows));
  refuse_surplus_words(parsed.positional, 0);
  for (const GivenValue& given : parsed.values) apply_value(given, option_rows(rows));
  const char* key = std::getenv("OPENAI_API_KEY");
  if (options.api_key.empty() && key != nullptr) options.api_key = key;
  return options;
}

// Lines of standard input.
class LineReader {
 public:
  enum class Result { kLine, kEnd, kInterrupted };

  Result next(std::string* line) {
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos || (at_end_ && !buffer_.empty())) {
        *line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (line->ends_with('\r')) line->pop_back();
        return Result::kLine;
      }
      if (at_end_) return Result::kEnd;
      if (!wait()) return Result::kInterrupted;
      char piece[4096];
      const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
      if (got > 0) buffer_.append(piece, static_cast<size_t>(got));
      at_end_ = got <= 0;
    }
  }

 private:
  // For input. False when an interrupt came, be it before the wait began.
  static bool wait() {
    sigset_t interrupts, before;
    sigemptyset(&interrupts);
    sigaddset(&interrupts, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupts, &before);
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const bool has_input = !interrupted && ::ppoll(&input, 1, nullptr, &before) >= 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return has_input;
  }

  std::string buffer_;
  bool at_end_ = false;
};

class Chat {
 public:
  explicit Chat(ChatOptions options)
      : options_(std::move(options)), client_(parse_server_address(options_.url), {}) {
    is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
    is_interactive_ = is_terminal_ && ::isatty(STDIN_FILENO) == 1;
    const char* no_color = std::getenv("NO_COLOR");
    has_color_ = is_terminal_ && (no_color == nullptr || *no_color == '\0');
    if (!options_.api_key.empty())
      headers_.emplace_back("Authorization", "Bearer " + options_.api_key);
  }

  int run() {
    if (is_interactive_) watch_interrupts();
    greet();
    LineReader reader;
    for (std::string line;;) {
      interrupted = 0;
      show(is_interactive_ ? "> " : "");
      const LineReader::Result result = reader.next(&line);
      if (result == LineReader::Result::kEnd) break;
      if (result == LineReader::Result::kInterrupted) {
        show("\n");
        continue;
      }
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      if (line == "/quit") return exit_code();
      if (line == "/clear") {
        messages_ = Json::array();
      } else if (line.starts_with('/') && line.find(' ') == std::string::npos) {
        tell(fmt::format("there is no command {}; there are /clear and /quit", line));
      } else {
        answer(line);
      }
    }
    show(is_interactive_ ? "\n" : "");
    return exit_code();
  }

 private:
  // A person has read what failed; a script sees it by the code.
  int exit_code() const { return has_failed_ && !is_interactive_ ? kExitFailed : 0; }

  void greet() {
    if (!is_interactive_) return;
    std::string legend;
    for (size_t i = 0; has_color_ && i < kNumPieceOrigins; ++i) {
      const auto origin = static_cast<PieceOrigin>(i);
      legend += fmt::format(" {}{}{}", color_of(origin), name_of(origin), kNoColor);
    }
    if (!legend.empty()) legend = "Tokens:" + legend + ". ";
    show(legend + "/clear begins anew, /quit ends, Ctrl-C stops an answer.\n");
  }

  std::string body_of(const std::string& question) const {
    Json messages = Json::array();
    if (!options_.system.empty())
      messages.push_back({{"role", "system"}, {"content", options_.system}});
    messages.insert(messages.end(), messages_.begin(), messages_.end());
    messages.push_back({{"role", "user"}, {"content", question}});
    Json body = {{"messages", std::move(messages)},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"return_token_origins", true},
                 // Where each token's text begins is told of the whole text, reasoning included.
                 {"reasoning_format", "none"}};
    if (!options_.model.empty()) body["model"] = options_.model;
    if (options_.temperature >= 0) body["temperature"] = options_.temperature;
    if (options_.max_tokens > 0) body["max_tokens"] = options_.max_tokens;
    if (options_.seed >= 0) body["seed"] = options_.seed;
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  void answer(const std::string& question) {
    ChatAnswer answer;
    interrupted = 0;
    const std::string problem = read_answer(body_of(question), &answer);
    show(has_color_ ? kNoColor : "");
    if (!answer.text().empty() && !answer.text().ends_with('\n')) show("\n");
    if (!problem.empty()) {
      has_failed_ = true;
      tell(problem);
    }
    const std::string figures = answer.figures();
    const char* stopped = figures.empty() ? "stopped" : "stopped: ";
    if (interrupted || !figures.empty()) tell((interrupted ? stopped : "") + figures);
    if (answer.text().empty()) return;
    messages_.push_back({{"role", "user"}, {"content", question}});
    messages_.push_back({{"role", "assistant"}, {"content", answer.text()}});
  }

  // What went wrong, in one sentence; empty for an answer, one that was stopped too.
  std::string read_answer(const std::string& body, ChatAnswer* answer) {
    int status = 0;
    std::string problem, error_body;
    EventReader events;
    const auto print = [&](std::string_view data) {
      const double now_s = std::chrono::duration<double>(Clock::now() - begin_).count();
      for (const AnswerPiece& piece : answer->take(now_s, data)) show(painted(piece));
      return !answer->is_whole();
    };
    const auto receive = [&](std::string_view bytes) {
      try {
        if (status == 200) return events.take(bytes, print) && !interrupted;
        error_body.append(bytes.substr(0, EventReader::kMaxLineBytes - error_body.size()));
        return true;
      } catch (const std::exception& error) {
        problem = error.what();
        return false;
      }
    };
    auto exchange = std::async(std::launch::async, [&] {
      return client_.exchange({.path = "/v1/chat/completions",
                               .headers = headers_,
                               .body = body,
                               .on_head = [&](int received) { status = received; },
                               .on_bytes = receive});
    });
    while (exchange.wait_for(kInterruptSlice) != std::future_status::ready) {
      if (interrupted) client_.stop();
    }
    const HttpOutcome outcome = exchange.get();
    if (interrupted || answer->is_whole() || !problem.empty()) return problem;
    if (outcome == HttpOutcome::kNoConnection)
      return fmt::format("there is no connection to {}", options_.url);
    if (status != 0 && status != 200)
      return fmt::format("the server answered {}: {}", status, error_message_of(error_body));
    return outcome == HttpOutcome::kTimeout ? "the server was silent for too long"
                                            : "the connection was lost";
  }

  std::string painted(const AnswerPiece& piece) const {
    if (!is_terminal_) return piece.text;
    const std::string text = without_controls(piece.text);
    return has_color_ ? color_of(piece.origin) + text : text;
  }

  static void show(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  // Beside the answers: on a terminal below them, in a pipe not among them.
  void tell(const std::string& sentence) const {
    const bool is_dim = has_color_ && ::isatty(STDERR_FILENO) == 1;
    fmt::print(stderr,
               "{}{}{}\n",
               is_dim ? kDim : "",
               is_dim ? without_controls(sentence) : sentence,
               is_dim ? kNoColor : "");
  }

  const ChatOptions options_;
  HttpClient client_;
  std::vector<std::pair<std::string, std::string>> headers_;
  bool is_terminal_ = false;     // what is printed
  bool is_interactive_ = false;  // what is read too
  bool has_color_ = false;
  bool has_failed_ = false;
  Json messages_ = Json::array();
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

int chat_command(const CommandLine& line) { return Chat(read_options(line.arguments)).run(); }

}  // namespace outrider
