#include "holdfast/inspect/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "holdfast/state/number.h"

namespace holdfast {
namespace {

// A tensor of each side that have a name in common, or a tensor that only one side has.
struct Match {
  std::string name;
  std::optional<TensorId> a, b;
};

void add_names(const Contents& contents, std::set<std::string>& names) {
  for (const Tensor& tensor : contents.collection.tensors()) {
    names.insert(tensor.name);
    names.insert(tensor.aliases.begin(), tensor.aliases.end());
  }
}

// Matches the tensors of both sides by name. A pair that has several names in common is
// one match.
std::vector<Match> matches(const Contents& a, const Contents& b) {
  std::set<std::string> names;
  add_names(a, names);
  add_names(b, names);
  std::set<std::pair<int64_t, int64_t>> seen;
  std::vector<Match> found;
  for (const std::string& name : names) {
    const Match match{name, a.collection.find(name), b.collection.find(name)};
    const auto number = [](const std::optional<TensorId>& id) {
      return id ? int64_t{*id} : int64_t{-1};
    };
    if (seen.emplace(number(match.a), number(match.b)).second) found.push_back(match);
  }
  return found;
}

std::optional<TensorKind> kind_of(const Contents& contents,
                                  const std::optional<TensorId>& id) {
  if (!id) return std::nullopt;
  const Tensor& tensor = contents.collection.tensor(*id);
  return TensorKind{tensor.dtype, tensor.shape};
}

Verdict verdict_of(const TensorDiff& tensor) {
  if (!tensor.b) return Verdict::kOnlyA;
  if (!tensor.a) return Verdict::kOnlyB;
  if (tensor.a->dtype != tensor.b->dtype) return Verdict::kDtype;
  if (tensor.a->shape != tensor.b->shape) return Verdict::kShape;
  return Verdict::kEqual;
}

std::vector<int64_t> index_of(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int k = shape.rank() - 1; k >= 0; --k) {
    index[static_cast<size_t>(k)] = element % shape[k];
    element /= shape[k];
  }
  return index;
}

// Raises `most` to `seen` if that is greater. Once `most` is NaN, it stays NaN.
void raise(double& most, double seen) {
  if (std::isnan(most)) return;
  most = std::isnan(seen) ? seen : std::max(most, seen);
}

// Compares one window of both sides and adds the result to `tensor`. `element` is the
// number of the window's first element.
void compare_window(ByteView a, ByteView b, int64_t element, TensorDiff& tensor) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  const Dtype dtype = tensor.a->dtype;
  const auto size = static_cast<size_t>(bytes_of(dtype));
  for (size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(a.data() + at, b.data() + at, size) == 0) continue;
    if (tensor.differing == 0) {
      const auto inside = static_cast<int64_t>(at / size);
      tensor.first = index_of(tensor.a->shape, element + inside);
    }
    const Gap gap = gap_between(dtype, a.subspan(at, size), b.subspan(at, size));
    tensor.differing += 1;
    raise(tensor.max_absolute, gap.absolute);
    raise(tensor.max_relative, gap.relative);
  }
}

class Comparison {
 public:
  Comparison(const Contents& a, const Contents& b, int64_t window,
             const Progress& progress)
      : a_(a),
        b_(b),
        window_(std::max<int64_t>(window / 16 * 16, 16)),
        progress_(progress) {}

  Result<DiffReport> run() {
    const std::vector<Match> found = matches(a_, b_);
    for (const Match& match : found) {
      report_.tensors.push_back(
          {.name = match.name, .a = kind_of(a_, match.a), .b = kind_of(b_, match.b)});
      TensorDiff& tensor = report_.tensors.back();
      tensor.verdict = verdict_of(tensor);
      if (tensor.verdict == Verdict::kEqual) {
        total_ += a_.collection.tensor(*match.a).bytes();
      }
    }
    for (size_t i = 0; i < found.size(); ++i) {
      if (report_.tensors[i].verdict != Verdict::kEqual) continue;
      HOLDFAST_TRY(compare(found[i], report_.tensors[i]).within(found[i].name));
    }
    return std::move(report_);
  }

 private:
  Result<void> compare(const Match& match, TensorDiff& tensor) {
    const int64_t bytes = a_.collection.tensor(*match.a).bytes();
    const int64_t element_bytes = bytes_of(tensor.a->dtype);
    CanonicalStream stream_a(a_, *match.a), stream_b(b_, *match.b);
    for (int64_t at = 0; at < bytes; at += window_) {
      const auto size = static_cast<size_t>(std::min(window_, bytes - at));
      of_a_.resize(size);
      of_b_.resize(size);
      HOLDFAST_TRY(stream_a.read(of_a_));
      HOLDFAST_TRY(stream_b.read(of_b_));
      compare_window(of_a_, of_b_, at / element_bytes, tensor);
      report_.bytes += static_cast<int64_t>(size);
      if (progress_) progress_(report_.bytes, total_);
    }
    if (tensor.differing > 0) tensor.verdict = Verdict::kDiffers;
    return {};
  }

  const Contents& a_;
  const Contents& b_;
  // A multiple of the size of every element type.
  const int64_t window_;
  const Progress& progress_;
  int64_t total_ = 0;
  Bytes of_a_, of_b_;
  DiffReport report_;
};

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEqual: return "equal";
    case Verdict::kDiffers: return "differs";
    case Verdict::kDtype: return "dtype";
    case Verdict::kShape: return "shape";
    case Verdict::kOnlyA: return "only_a";
    case Verdict::kOnlyB: return "only_b";
  }
  return "unknown";
}

int64_t DiffReport::count(Verdict verdict) const {
  return std::ranges::count(tensors, verdict, &TensorDiff::verdict);
}

bool DiffReport::equal() const {
  return !objects && left_out.empty() && count(Verdict::kEqual) == std::ssize(tensors);
}

Result<DiffReport> diff(const Contents& a, const Contents& b,
                        const DiffOptions& options, const Progress& progress) {
  DiffReport report =
      HOLDFAST_TRY(Comparison(a, b, options.window_bytes, progress).run());
  if (options.objects) report.objects = first_difference(a.objects, b.objects);
  for (const Contents* side : {&a, &b}) {
    report.left_out.insert(report.left_out.end(), side->left_out.begin(),
                           side->left_out.end());
  }
  return report;
}

}  // namespace holdfast
