// The embedded draft with another tokenizer, as a folder made on the fly: every token under another
// id, some under other texts, its own name for the end of text, more rows than tokens. Its model is
// the same, so what it would write is known.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/settings/run_config.h"

namespace outrider::test {

class OtherVocabulary {
 public:
  struct Options {
    int rename_every = 0;  // every so many tokens of several characters get a text of their own
    bool rename_end = false;
    int num_extra_rows = 0;  // negative: the last rows are cut off, and no id changes
  };
  explicit OtherVocabulary(const Options& options);
  ~OtherVocabulary();
  OtherVocabulary(const OtherVocabulary&) = delete;
  OtherVocabulary& operator=(const OtherVocabulary&) = delete;

  std::string folder() const { return folder_.string(); }
  // The embedded target with this draft.
  RunConfig config(int num_targets, int draft_len) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace outrider::test
