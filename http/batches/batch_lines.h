// The input of a batch: a file of OpenAI batch lines, checked as a whole before anything runs. Used
// by `outrider batch` on rank 0's front-end thread and by the queue of /v1/batches on its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "http/api/openai_request.h"

namespace outrider {

struct BatchLine {
  int number = 0;  // in the file, from 1
  std::string custom_id;
  std::string url;
  std::string body;      // JSON
  int num_requests = 1;  // of the engine: prompts times choices
};

// Why a line, or the file (number 0), cannot be answered.
struct BatchLineFault {
  int number = 0;
  std::string message;
  std::string param;  // the field at fault; may be empty, as the next
  std::string code;
};

struct BatchInput {
  std::vector<BatchLine> lines;
  std::vector<BatchLineFault> faults;
};

struct BatchInputRules {
  std::string url;  // of all lines; empty = any of the endpoints
  size_t max_lines = SIZE_MAX;
  size_t max_faults = 1;  // after so many the rest is not looked at
};

// Whether lines may ask for it: /v1/completions, /v1/chat/completions, /v1/responses.
bool is_batch_endpoint(const std::string& url);

// Lines of white space alone are skipped; a field that is null counts as absent. A line that could
// never be answered is a fault, and so is a custom_id that is there twice. Throws Error for a file
// that cannot be read.
BatchInput read_batch_input(const std::string& path,
                            const CallContext& context,
                            const BatchInputRules& rules);

// Of any endpoint. Throws Error that names file and line for the first fault.
std::vector<BatchLine> read_batch_lines(const std::string& path, const CallContext& context);

}  // namespace outrider
