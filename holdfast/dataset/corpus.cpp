#include "holdfast/dataset/corpus.h"

#include <algorithm>
#include <cctype>

#include "holdfast/base/checked.h"
#include "holdfast/dataset/read_ranges.h"

namespace holdfast {

Result<Dtype> parse_token_dtype(std::string_view word) {
  std::string name(word);
  if (const size_t at = name.find("int"); at != name.npos) name.erase(at + 1, 2);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const auto dtype = parse_dtype(name);
  const bool is_integer = dtype.ok() && (name[0] == 'U' || name[0] == 'I');
  if (is_integer) return dtype;
  return invalid("dtype: \"{}\"; expected u8, u16, i16, i32, u32 or i64", word);
}

Corpus::Corpus(Env& env, std::vector<Path> files, CorpusOptions options)
    : env_(env),
      files_(std::move(files)),
      options_(std::move(options)),
      reader_(std::make_unique<RangeReader>(env, files_, indexes_, options_.threads)) {}

Corpus::~Corpus() = default;

Result<std::unique_ptr<Corpus>> Corpus::open(Env& env,
                                             const std::vector<std::string>& patterns,
                                             CorpusOptions options,
                                             const IndexProgress& progress) {
  std::vector<Path> files = HOLDFAST_TRY(find_corpus_files(env, patterns));
  if (!options.kind) {
    options.kind =
        HOLDFAST_TRY(guess_corpus_kind(env, files, options.dtype.has_value()));
  }
  if (options.threads < 1 || options.threads > 256) {
    return invalid("threads: {}; expected 1 to 256", options.threads);
  }
  std::unique_ptr<Corpus> corpus(
      new Corpus(env, std::move(files), std::move(options)));
  HOLDFAST_TRY(corpus->open_indexes(progress));
  HOLDFAST_TRY(corpus->check_options());
  HOLDFAST_TRY(corpus->count_samples());
  corpus->fingerprint_ = corpus->make_fingerprint();
  return corpus;
}

Result<void> Corpus::open_indexes(const IndexProgress& progress) {
  for (const Path& file : files_) {
    const Path path = index_path_of(file, options_.index_folder);
    auto index = FileIndex::open(env_, file, path, kind());
    if (!index.ok() && is_missing(index.error())) {
      const Progress of_file = [&](int64_t done, int64_t total) {
        if (progress) progress(file, done, total);
      };
      index = make_index(env_, file, path, kind(), of_file);
    }
    indexes_.push_back(HOLDFAST_TRY(std::move(index)));
  }
  return {};
}

Result<void> Corpus::check_options() {
  const std::string& first = files_.front().native();
  if (options_.context < 0) {
    return invalid("context: {}; expected 1 or more", options_.context);
  }
  const bool has_tokens =
      kind() == CorpusKind::kTokens || kind() == CorpusKind::kMegatron;
  if (!has_tokens) {
    if (options_.context == 0 && !options_.dtype) return {};
    return invalid("{}: is {}, and context or dtype is given; expected them only for "
                   "files of tokens",
                   first, name_of(kind()));
  }
  if (kind() == CorpusKind::kTokens) {
    if (options_.context > 0 && options_.dtype) return {};
    return invalid("{}: is a file of tokens; expected a dtype and context, the tokens in a "
                   "sample",
                   first);
  }
  for (const FileIndex& index : indexes_) {
    const auto dtype = parse_dtype(megatron_dtype(index.header().dtype));
    if (!dtype.ok()) return dtype.error().within(index.path().native());
    if (!options_.dtype) options_.dtype = *dtype;
    if (*options_.dtype == *dtype) continue;
    return invalid("{}: has tokens of {}; expected {}, as in the call or in {}",
                   index.path().native(), name_of(*dtype), name_of(*options_.dtype), first);
  }
  return {};
}

int64_t Corpus::window_bytes() const {
  if (options_.context == 0) return 0;
  return checked_mul<int64_t>(options_.context, bytes_of(*options_.dtype))
      .value_or(INT64_MAX);
}

Result<void> Corpus::count_samples() {
  for (const FileIndex& index : indexes_) {
    const IndexHeader& header = index.header();
    const int64_t count = options_.context > 0 ? header.file.bytes / window_bytes()
                                               : index.samples();
    const auto sum = checked_add(firsts_.back(), count);
    if (!sum) return invalid("corpus: more than 2^63 samples");
    firsts_.push_back(*sum);
  }
  if (samples() > 0) return {};
  return invalid("{}: has no sample, and no other file has one; expected at least one",
                 files_.front().native());
}

std::string Corpus::make_fingerprint() const {
  std::string text =
      fmt::format("{} {} {}\n", name_of(kind()), options_.context,
                  options_.dtype ? name_of(*options_.dtype) : std::string_view());
  for (const FileIndex& index : indexes_) {
    for (const IndexedFile& file : {index.header().file, index.header().table_file}) {
      text += fmt::format("{} {} ", file.bytes, file.digest.hex());
    }
    text += '\n';
  }
  return xxh3_128(bytes_of(text)).hex();
}

SampleRange Corpus::range_in(size_t file, int64_t sample) const {
  const FileIndex& index = indexes_[file];
  if (options_.context > 0) {
    return SampleRange{sample * window_bytes(), (sample + 1) * window_bytes()};
  }
  if (kind() == CorpusKind::kTar) {
    return SampleRange{index.word(2 * sample), index.word(2 * sample + 1)};
  }
  const int64_t word = index.word(sample), next = index.word(sample + 1);
  const int64_t most = index.header().file.bytes;
  const bool is_inside = word >= 0 && word <= most && next >= 0 && next <= most;
  if (kind() != CorpusKind::kText && !is_inside) return SampleRange{-1, -1};
  if (kind() == CorpusKind::kMegatron) return SampleRange{word, next};
  if (kind() == CorpusKind::kRecords) {
    return SampleRange{word + kRecordHead, next - kRecordTail};
  }
  constexpr int64_t kStart = (int64_t{1} << kStartBits) - 1;
  return SampleRange{word & kStart, (next & kStart) - (word >> kStartBits)};
}

size_t Corpus::file_of(int64_t sample) const {
  const auto after = std::ranges::upper_bound(firsts_, sample);
  return static_cast<size_t>(after - firsts_.begin()) - 1;
}

Result<FileRange> Corpus::range_of(int64_t sample) const {
  if (sample < 0 || sample >= samples()) {
    return invalid("sample: {}; expected 0 or more, below {}", sample, samples());
  }
  const size_t file = file_of(sample);
  const SampleRange range = range_in(file, sample - firsts_[file]);
  const bool is_record = kind() == CorpusKind::kRecords;
  const int64_t first = is_record ? kRecordHead : 0, last = is_record ? kRecordTail : 0;
  const bool is_good = range.begin >= first && range.begin <= range.end &&
                       range.end <= indexes_[file].header().file.bytes - last;
  if (is_good && range.size() <= kMostSample) return FileRange{file, range.begin, range.end};
  return corrupt("{}: sample {} is at bytes {} to {} of {}; expected at most 1 GiB of the "
                 "file, so a new index by `holdfast index`",
                 indexes_[file].path().native(), sample - firsts_[file], range.begin,
                 range.end, files_[file].native());
}

Result<std::vector<FileRange>> Corpus::ranges_of(std::span<const int64_t> samples) const {
  // So many words of a table are fetched at once.
  constexpr int64_t kAhead = 16;
  const int64_t words = kind() == CorpusKind::kTar ? 2 : 1;
  std::vector<FileRange> ranges;
  ranges.reserve(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t ahead = samples[std::min<size_t>(i + kAhead, samples.size() - 1)];
    const bool is_far = ahead - samples[i] != kAhead;  // the processor finds what follows
    if (options_.context == 0 && is_far && ahead >= 0 && ahead < this->samples()) {
      const size_t file = file_of(ahead);
      indexes_[file].prefetch((ahead - firsts_[file]) * words);
    }
    ranges.push_back(HOLDFAST_TRY(range_of(samples[i])));
  }
  return ranges;
}

Result<std::vector<FileRange>> Corpus::stored_ranges_of(
    std::span<const int64_t> samples) const {
  std::vector<FileRange> ranges = HOLDFAST_TRY(ranges_of(samples));
  if (kind() != CorpusKind::kRecords) return ranges;
  for (FileRange& range : ranges) {
    range.begin -= kRecordHead;
    range.end += kRecordTail;
  }
  return ranges;
}

std::string_view Corpus::trailer() const {
  static constexpr char kZeros[2 * 512] = {};
  return kind() == CorpusKind::kTar ? std::string_view(kZeros, sizeof kZeros) : "";
}

std::string_view Corpus::separator() const {
  return kind() == CorpusKind::kText ? "\n" : "";
}

Result<void> Corpus::read(std::span<SampleRead> reads) const {
  return reader_->read(reads);
}

Result<std::shared_ptr<const FileSource>> Corpus::open_file(size_t file) const {
  return reader_->file(file);
}

Result<void> Corpus::check_unchanged(size_t file, const FileSource& source) const {
  return reader_->check_unchanged(file, source);
}

Result<Bytes> Corpus::read(int64_t sample) const {
  const FileRange range = HOLDFAST_TRY(range_of(sample));
  Bytes bytes(static_cast<size_t>(range.size()));
  SampleRead one{range, bytes};
  HOLDFAST_TRY(read({&one, 1}));
  return bytes;
}

}  // namespace holdfast
