// One-line logs on stderr: "12:00:01.234 I target[1/4] loaded 201 tensors". Any thread may log; a
// line is written with one call so that ranks' lines do not mix. Never per token.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace outrider {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Names this thread's role in its lines, e.g. "target[1/4]". Threads without one use the process's.
void set_process_log_name(std::string name);
void set_thread_log_name(std::string name);
void set_log_level(LogLevel minimum);
LogLevel log_level_from_name(std::string_view name);  // throws Error; debug, info, warning, error

// Control characters in the text are escaped: a request can never forge a log line.
void log_line(LogLevel level, std::string_view text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace outrider
