// The input of `outrider batch`: a file of OpenAI batch lines, checked as a whole before anything
// runs. Called by the batch command on rank 0's front-end thread.
#pragma once

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

// Lines of white space alone are skipped; a field that is null counts as absent. Throws Error that
// names the line, for one that could never be answered and for a custom_id that is there twice.
std::vector<BatchLine> read_batch_lines(const std::string& path, const CallContext& context);

}  // namespace outrider
