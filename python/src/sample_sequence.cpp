// Python face of state's sample sequence: names, types and docs only.
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
  throw Raised(invalid("last=\"{}\": not known, want short, drop or join", text));
}

std::string print_end(EpochEnd end) {
  return std::string(kEnds[static_cast<size_t>(end)].first);
}

int64_t checked(int64_t position) {
  if (position < 0) throw Raised(invalid("position {}, want at least 0", position));
  return position;
}

Pair share(int64_t first, int64_t last, int64_t rank, int64_t world) {
  if (rank < 0 || rank >= world) {
    throw Raised(invalid("rank {} of {}, want one of them", rank, world));
  }
  if (checked(last) < checked(first)) {
    throw Raised(invalid("a batch from {} to {}, want it forward", first, last));
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
          "Samples a step takes, all ranks together.")
      .def_prop_ro(
          "seed", [](const S& self) { return self.options().seed; },
          "What chooses the order.")
      .def_prop_ro(
          "shuffle", [](const S& self) { return self.options().shuffle; },
          "False: the dataset's own order in every epoch.")
      .def_prop_ro(
          "last", [](const S& self) { return print_end(self.options().end); },
          "What becomes of a batch that the epoch has too few samples left for.")
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
          nb::arg("position"), "The sample at a position.")
      .def(
          "indices",
          [](const S& self, int64_t first, int64_t last) {
            return self.indices({checked(first), checked(last)});
          },
          nb::arg("first"), nb::arg("last"), "The samples at [first, last).")
      .def(
          "step",
          [](const S& self, int64_t cursor) {
            const Positions batch = unwrap(self.batch_at(checked(cursor)));
            return Pair(batch.first, batch.last);
          },
          nb::arg("cursor"),
          "The positions (first, last) of the batch that follows when all before\n"
          "`cursor` has been read; `last` is the cursor after it.")
      .def_static("share", &share, nb::arg("first"), nb::arg("last"), nb::arg("rank"),
                  nb::arg("world"),
                  "What rank `rank` of `world` takes of the batch [first, last). The\n"
                  "shares put together are the batch, whatever `world` is.");
}

}  // namespace

void bind_sample_sequence(nb::module_& m) {
  nb::class_<SampleSequence> sequence(
      m, "Sequence",
      "The order in which a run reads its dataset: a function of a seed.\n\n"
      "Positions 0, 1, 2, ... go through the dataset again and again, in a new order "
      "in\n"
      "every epoch. Nothing is stored: any position is found at once, on any machine.\n"
      "`last` says what becomes of a batch that the epoch has too few samples left\n"
      "for: \"short\" it is smaller, \"drop\" it is left out, \"join\" the next epoch\n"
      "fills it up.");
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
      "`batch` is what all ranks take together in a step.");
  bind_options(sequence);
  bind_positions(sequence);
  sequence.def("__repr__", &print);
}

}  // namespace holdfast::python
