#include "holdfast/cli/corpus_options.h"

#include <optional>

#include "holdfast/cli/progress.h"
#include "holdfast/cli/text.h"

namespace holdfast {

std::vector<Option> CorpusArguments::options(const std::string& files_help) {
  return {{"FILES", files_help, &files, true},
          {"--kind", "What the files are, if their names do not tell", &kind, false,
           {"text", "tokens", "megatron", "tar", "tfrecord"}},
          {"--context", "Tokens in a sample", &context},
          {"--dtype", "The type of the tokens: u16, i32, ...", &dtype, false,
           {"u8", "u16", "i32", "u32", "i64"}},
          {"--to", "The folder of the indexes; else they lie beside the files",
           &index_folder}};
}

Result<CorpusOptions> CorpusArguments::parsed() const {
  CorpusOptions parsed{.context = context, .index_folder = index_folder};
  if (!kind.empty()) parsed.kind = HOLDFAST_TRY(parse_corpus_kind(kind));
  if (!dtype.empty()) parsed.dtype = HOLDFAST_TRY(parse_token_dtype(dtype));
  return parsed;
}

Result<std::unique_ptr<Corpus>> open_corpus(const Context& context,
                                            const CorpusArguments& arguments) {
  const CorpusOptions options = HOLDFAST_TRY(arguments.parsed());
  Path shown;
  std::optional<ProgressBar> bar;
  return Corpus::open(context.env, arguments.files, options,
                      [&](const Path& file, int64_t done, int64_t total) {
                        if (!bar || file != shown) {
                          bar.reset();
                          bar.emplace(context, "index " + printable(file.native()));
                        }
                        shown = file;
                        bar->update(done, total);
                      });
}

}  // namespace holdfast
