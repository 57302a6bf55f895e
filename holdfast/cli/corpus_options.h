// The options of the verbs that read the samples of files: index and mount.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/cli/command.h"
#include "holdfast/dataset/corpus.h"

namespace holdfast {

struct CorpusArguments {
  std::vector<std::string> files;
  std::string kind, dtype, index_folder;
  int64_t context = 0;

  // The options; `files_help` describes the arguments by position.
  std::vector<Option> options(const std::string& files_help);
  // Fails with kInvalid for a wrong word.
  Result<CorpusOptions> parsed() const;
};

// Opens the corpus, with a progress bar for files that are indexed.
Result<std::unique_ptr<Corpus>> open_corpus(const Context& context,
                                            const CorpusArguments& arguments);

}  // namespace holdfast
