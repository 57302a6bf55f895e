// Bindings of state/sample_sequence.h: names, types and docs only.
#include "holdfast/state/sample_sequence.h"

#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "errors.h"

namespace holdfast::python {
namespace {

using Pair = std::pair<int64_t, int64_t>;
using Word = std::pair<std::string_view, EpochEnd>;

constexpr std::array<Word, 3> kEnds{Word{"short", EpochEnd::kShort},
                                    Word{"drop", EpochEnd::kDrop},
                                    Word{"join", EpochEnd::kJoin}};

EpochEnd parse_end(const std::string& text) {
  for (const auto& [word, end] : kEnds) {
    if (word == text) return end;
  }
  throw Raised(invalid("last: \"{}\"; expected short, drop or join", text));
}

std::string print_end(EpochEnd end) {
  return std::string(kEnds[static_cast<size_t>(end)].first);
}

int64_t checked(int64_t position) {
  if (position < 0) throw Raised(invalid("position: {}; expected 0 or more", position));
  return position;
}

Pair share(int64_t first, int64_t last, int64_t rank, int64_t world) {
  if (rank < 0 || rank >= world) {
    throw Raised(invalid("rank: {}; expected 0 or more, below world {}", rank, world));
  }
  if (checked(last) < checked(first)) {
    throw Raised(invalid("batch: from {} to {}; expected first <= last", first, last));
  }
  const Positions part = share_of({first, last}, rank, world);
  return {part.first, part.last};
}

std::string print(const SampleSequence& self) {
  const SampleOptions& o = self.options();
  return fmt::format("Sequence({}, batch={}, seed={}, shuffle={}, last=\"{}\")",
                     o.samples, o.batch, o.seed, o.shuffle ? "True" : "False",
                     print_end(o.end));
}

void bind_options(nb::class_<SampleSequence>& sequence) {
  using S = SampleSequence;
  sequence
      .def_prop_ro(
          "samples", [](const S& self) { return self.options().samples; },
          "How many samples the dataset has.")
      .def_prop_ro(
          "batch", [](const S& self) { return self.options().batch; },
          "How many samples all ranks together take in a step.")
      .def_prop_ro(
          "seed", [](const S& self) { return self.options().seed; },
          "The number that decides the order.")
      .def_prop_ro(
          "shuffle", [](const S& self) { return self.options().shuffle; },
          "False if every epoch has the dataset's own order.")
      .def_prop_ro(
          "last", [](const S& self) { return print_end(self.options().end); },
          "What happens to a batch when the epoch has too few samples left for it.")
      .def_prop_ro("batches_per_epoch", &S::batches_per_epoch,
                   "How many batches an epoch has.");
}

void bind_positions(nb::class_<SampleSequence>& sequence) {
  using S = SampleSequence;
  sequence
      .def(
          "epoch",
          [](const S& self, int64_t position) {
            return self.epoch_of(checked(position));
          },
          nb::arg("position"), "The epoch that a position lies in.")
      .def(
          "index",
          [](const S& self, int64_t position) {
            return self.index_at(checked(position));
          },
          nb::arg("position"), "The index of the sample at a position.")
      .def(
          "indices",
          [](const S& self, int64_t first, int64_t last) {
            return self.indices({checked(first), checked(last)});
          },
          nb::arg("first"), nb::arg("last"),
          "The indices of the samples at the positions [first, last).")
      .def(
          "step",
          [](const S& self, int64_t cursor) {
            const Positions batch = unwrap(self.batch_at(checked(cursor)));
            return Pair(batch.first, batch.last);
          },
          nb::arg("cursor"),
          "The positions (first, last) of the next batch after all positions before\n"
          "`cursor` were read. `last` is the cursor after that batch.")
      .def_static("share", &share, nb::arg("first"), nb::arg("last"), nb::arg("rank"),
                  nb::arg("world"),
                  "The positions that rank `rank` of `world` ranks takes of the batch\n"
                  "[first, last). The shares of all ranks together are the batch, for\n"
                  "every `world`.");
}

}  // namespace

void bind_sample_sequence(nb::module_& m) {
  nb::class_<SampleSequence> sequence(
      m, "Sequence",
      "The order in which a run reads its dataset. It depends only on a seed.\n\n"
      "Positions 0, 1, 2, ... go through the dataset again and again, in a new order\n"
      "in every epoch. No list is stored: any machine can compute the sample at any\n"
      "position. `last` says what happens to a batch when the epoch has too few\n"
      "samples left for it: with \"short\" the batch is smaller, with \"drop\" it is\n"
      "left out, with \"join\" the next epoch fills it up.");
  sequence.def(
      "__init__",
      [](SampleSequence* self, int64_t samples, int64_t batch, uint64_t seed,
         bool shuffle, const std::string& last) {
        new (self)
            SampleSequence(unwrap(SampleSequence::create({.samples = samples,
                                                          .seed = seed,
                                                          .batch = batch,
                                                          .shuffle = shuffle,
                                                          .end = parse_end(last)})));
      },
      nb::arg("samples"), nb::arg("batch") = 1, nb::kw_only(), nb::arg("seed") = 0,
      nb::arg("shuffle") = true, nb::arg("last") = "short",
      "`batch` is how many samples all ranks together take in a step.");
  bind_options(sequence);
  bind_positions(sequence);
  sequence.def("__repr__", &print);
}

}  // namespace holdfast::python
