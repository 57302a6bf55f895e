#include "holdfast/inspect/metered_sources.h"

#include <atomic>

#include "holdfast/contents/chunked_source.h"

namespace holdfast {
namespace {

// Counts the bytes read from all sources and reports the progress. A reader may read
// some bytes twice, so the reported progress stops at the total.
class Meter {
 public:
  Meter(Reading reading, int64_t total) : reading_(std::move(reading)), total_(total) {}

  void add(int64_t bytes) {
    const int64_t done = done_ += bytes;
    if (reading_.progress) reading_.progress(std::min(done, total_), total_);
  }
  bool stopped() const { return reading_.stop && reading_.stop(); }

 private:
  const Reading reading_;
  const int64_t total_;
  std::atomic<int64_t> done_ = 0;
};

template <typename Kind>
class Metered : public Kind {
 public:
  Metered(std::shared_ptr<const Kind> inner, std::shared_ptr<Meter> meter)
      : inner_(std::move(inner)), meter_(std::move(meter)) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    HOLDFAST_TRY(check_going_on());
    HOLDFAST_TRY(inner_->read(offset, into));
    meter_->add(std::ssize(into));
    return {};
  }
  Result<void> check_going_on() const {
    if (!meter_->stopped()) return {};
    return unavailable("{}: reading was told to stop", name());
  }

  const std::shared_ptr<const Kind> inner_;
  const std::shared_ptr<Meter> meter_;
};

class MeteredChunks : public Metered<ChunkedSource> {
 public:
  using Metered::Metered;

  bool has_chunks(int64_t offset) const override { return inner_->has_chunks(offset); }
  Result<void> read_chunks(int64_t offset, const Box& box, const Map& into,
                           ByteSpan memory) const override {
    HOLDFAST_TRY(check_going_on());
    HOLDFAST_TRY(inner_->read_chunks(offset, box, into, memory));
    meter_->add(std::ssize(memory));
    return {};
  }
  int64_t best_part(int64_t offset) const override { return inner_->best_part(offset); }
  bool is_stored(int64_t offset) const override { return inner_->is_stored(offset); }
};

}  // namespace

void meter_sources(Contents& contents, const Reading& reading, int64_t total) {
  const auto meter = std::make_shared<Meter>(reading, total);
  for (auto& source : contents.sources) {
    if (auto chunks = std::dynamic_pointer_cast<const ChunkedSource>(source)) {
      source = std::make_shared<MeteredChunks>(std::move(chunks), meter);
    } else {
      source = std::make_shared<Metered<Source>>(std::move(source), meter);
    }
  }
}

}  // namespace holdfast
