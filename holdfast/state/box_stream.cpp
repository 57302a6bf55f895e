#include "holdfast/state/box_stream.h"

#include <algorithm>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

int64_t length(ByteView bytes) { return static_cast<int64_t>(bytes.size()); }

// The map of the box's elements in its stream, if the window's first byte counts as
// byte 0.
Map stream_map(const Box& box, int64_t element_bytes, int64_t first) {
  return Map::dense(box, element_bytes, -first);
}

// True if the elements lie in memory without gaps and in the order of the stream.
bool is_contiguous(const BoxMemory& place) {
  const Map stream = stream_map(place.box, place.element_bytes, 0);
  return plan_copy(place.map, stream, place.box.shape(), place.element_bytes).loops ==
         0;
}

// Contiguous bytes: a part of one element, or all of the window if the box is
// contiguous.
struct Run {
  int64_t at;      // offset in the memory
  int64_t window;  // offset in the window
  int64_t bytes;
};

// Visits all parts of a window of the stream of `place`. If the memory is contiguous,
// that is one run. Else it is a run where the window begins or ends within an element,
// and boxes of whole elements in between.
template <typename OnRun, typename OnBox>
void walk(const BoxMemory& place, int64_t first, int64_t size, const OnRun& on_run,
          const OnBox& on_box) {
  const Box& box = place.box;
  const int64_t bytes = place.element_bytes, end = first + size;
  HOLDFAST_CHECK(first >= 0 && end <= box.elements() * bytes,
                 "window [{}, {}) of a stream of {} bytes", first, end,
                 box.elements() * bytes);
  if (size == 0) return;
  if (is_contiguous(place)) return on_run(Run{place.map.offset + first, 0, size});
  const auto cut_element = [&](int64_t from, int64_t to) {
    if (from >= to) return;
    const Box element = flat_range(box, from / bytes, from / bytes + 1).front();
    on_run(
        Run{place.map.offset_of(box, element) + from % bytes, from - first, to - from});
  };
  const int64_t first_whole = divide_up(first, bytes);
  const int64_t last_whole = std::max(end / bytes, first_whole);
  cut_element(first, std::min(first_whole * bytes, end));
  for (const Box& part : flat_range(box, first_whole, last_whole)) on_box(part);
  cut_element(last_whole * bytes, end);
}

// Visits the copies that fill a window from memory.
template <typename OnCopy>
void visit_gather(const BoxMemory& from, int64_t first, int64_t size,
                  const OnCopy& on_copy) {
  const Map stream = stream_map(from.box, from.element_bytes, first);
  walk(
      from, first, size,
      [&](const Run& run) {
        on_copy(StridedCopy{.from = run.at, .to = run.window, .run = run.bytes});
      },
      [&](const Box& part) {
        on_copy(plan_copy(from.map.narrowed(from.box, part),
                          stream.narrowed(from.box, part), part.shape(),
                          from.element_bytes));
      });
}

// Visits the copies that put a window into memory.
template <typename OnCopy>
void visit_scatter(const BoxMemory& to, int64_t first, int64_t size,
                   const OnCopy& on_copy) {
  const Map stream = stream_map(to.box, to.element_bytes, first);
  walk(
      to, first, size,
      [&](const Run& run) {
        on_copy(StridedCopy{.from = run.window, .to = run.at, .run = run.bytes});
      },
      [&](const Box& part) {
        on_copy(plan_copy(stream.narrowed(to.box, part), to.map.narrowed(to.box, part),
                          part.shape(), to.element_bytes));
      });
}

}  // namespace

std::vector<StridedCopy> plan_gather(const BoxMemory& from, int64_t first,
                                     int64_t size) {
  std::vector<StridedCopy> copies;
  visit_gather(from, first, size,
               [&](const StridedCopy& copy) { copies.push_back(copy); });
  return copies;
}

std::vector<StridedCopy> plan_scatter(const BoxMemory& to, int64_t first,
                                      int64_t size) {
  std::vector<StridedCopy> copies;
  visit_scatter(to, first, size,
                [&](const StridedCopy& copy) { copies.push_back(copy); });
  return copies;
}

void gather(const BoxMemory& from, ByteView memory, int64_t first, ByteSpan into) {
  visit_gather(from, first, length(into),
               [&](const StridedCopy& copy) { run_copy(copy, memory, into); });
}

void scatter(const BoxMemory& to, ByteSpan memory, int64_t first, ByteView from) {
  visit_scatter(to, first, length(from),
                [&](const StridedCopy& copy) { run_copy(copy, from, memory); });
}

Seal seal_stream(const Shape& shape, Dtype dtype, const Box& box, int64_t first,
                 ByteView window) {
  const Box whole = Box::whole(shape);
  const BoxMemory canonical{
      .box = box,
      .element_bytes = bytes_of(dtype),
      .map = Map::dense(whole, bytes_of(dtype)).narrowed(whole, box)};
  const Map stream = stream_map(box, bytes_of(dtype), first);
  Seal seal;
  walk(
      canonical, first, length(window),
      [&](const Run& run) {
        seal += seal_bytes(window.subspan(static_cast<size_t>(run.window),
                                          static_cast<size_t>(run.bytes)),
                           static_cast<uint64_t>(run.at));
      },
      [&](const Box& part) {
        seal += seal_box(shape, dtype, part, stream.narrowed(box, part), window);
      });
  return seal;
}

}  // namespace holdfast
