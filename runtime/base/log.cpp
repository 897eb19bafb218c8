// See log.h.
#include "runtime/base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>

#include "runtime/base/error.h"

namespace outrider {
namespace {

std::atomic<LogLevel> minimum_level{LogLevel::kInfo};
std::mutex process_name_mutex;
std::string process_name = "outrider";
thread_local std::string thread_name;

std::string current_name() {
  if (!thread_name.empty()) return thread_name;
  std::lock_guard lock(process_name_mutex);
  return process_name;
}

unsigned char byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

// How many bytes at i a terminal or a reader of the log could take for a command or a line's end:
// C0, DEL, and in UTF-8 C1 (U+0080 to U+009F) and the line and paragraph separators.
size_t control_bytes_at(std::string_view text, size_t i) {
  const unsigned char first = byte_at(text, i), second = byte_at(text, i + 1);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && second >= 0x80 && second <= 0x9f) return 2;
  const unsigned char third = byte_at(text, i + 2);
  return first == 0xe2 && second == 0x80 && (third == 0xa8 || third == 0xa9) ? 3 : 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t num_control = control_bytes_at(text, i);
    if (num_control == 0) out += text[i++];
    for (size_t end = i + num_control; i < end; ++i)
      out += fmt::format("\\x{:02x}", byte_at(text, i));
  }
  return out;
}

std::string clock_time() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since_epoch = now.time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}.{:03}", parts.tm_hour, parts.tm_min, parts.tm_sec, ms);
}

}  // namespace

void set_process_log_name(std::string name) {
  std::lock_guard lock(process_name_mutex);
  process_name = std::move(name);
}

void set_thread_log_name(std::string name) { thread_name = std::move(name); }

void set_log_level(LogLevel minimum) { minimum_level = minimum; }

LogLevel log_level_from_name(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  throw Error(fmt::format("log level '{}' is not one of debug, info, warning, error", name));
}

void log_line(LogLevel level, std::string_view text) {
  if (level < minimum_level.load()) return;
  const char letter = "DIWE"[static_cast<int>(level)];
  const std::string line =
      fmt::format("{} {} {} {}\n", clock_time(), letter, current_name(), escaped(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace outrider
