#include "holdfast/inspect/metered_sources.h"

#include <atomic>

#include "holdfast/env/source_sink.h"

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

class MeteredSource : public Source {
 public:
  MeteredSource(std::shared_ptr<const Source> inner, std::shared_ptr<Meter> meter)
      : inner_(std::move(inner)), meter_(std::move(meter)) {}

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    if (meter_->stopped()) return unavailable("{}: reading was told to stop", name());
    HOLDFAST_TRY(inner_->read(offset, into));
    meter_->add(std::ssize(into));
    return {};
  }

 private:
  const std::shared_ptr<const Source> inner_;
  const std::shared_ptr<Meter> meter_;
};

}  // namespace

void meter_sources(Contents& contents, const Reading& reading, int64_t total) {
  const auto meter = std::make_shared<Meter>(reading, total);
  for (auto& source : contents.sources) {
    source = std::make_shared<MeteredSource>(std::move(source), meter);
  }
}

}  // namespace holdfast
