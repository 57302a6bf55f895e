// Bindings of state/mixture.h: names, types and docs only.
#include "holdfast/state/mixture.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "errors.h"

namespace holdfast::python {
namespace {

// Name, samples, weight, and samples given before this segment.
using Source = std::tuple<std::string, int64_t, int64_t, int64_t>;

Mixture create(const std::vector<Source>& sources, int64_t batch, uint64_t seed,
               bool shuffle, int64_t first) {
  MixtureOptions options{
      .seed = seed, .batch = batch, .shuffle = shuffle, .first = first};
  for (const auto& [name, samples, weight, base] : sources) {
    options.sources.push_back(
        {.name = name, .samples = samples, .weight = weight, .base = base});
  }
  return unwrap(Mixture::create(std::move(options)));
}

int64_t checked(const Mixture& self, int64_t position) {
  const int64_t first = self.options().first;
  if (position >= first) return position;
  throw Raised(invalid("position: {}; expected {} or more, where these weights begin",
                       position, first));
}

}  // namespace

void bind_mixture(nb::module_& m) {
  nb::class_<Mixture>(m, "Mixture",
                      "The order in which a run reads several datasets in fixed shares,\n"
                      "from one position on. holdfast.data.mix makes it.")
      .def(
          "__init__",
          [](Mixture* self, const std::vector<Source>& sources, int64_t batch,
             uint64_t seed, bool shuffle, int64_t first) {
            new (self) Mixture(create(sources, batch, seed, shuffle, first));
          },
          nb::arg("sources"), nb::arg("batch"), nb::kw_only(), nb::arg("seed") = 0,
          nb::arg("shuffle") = true, nb::arg("first") = 0,
          "Each source is (name, samples, weight, samples given before `first`).")
      .def_prop_ro("samples", &Mixture::samples, "How many samples all sources have.")
      .def_prop_ro(
          "batch", [](const Mixture& self) { return self.options().batch; },
          "How many samples all ranks together take in a step.")
      .def_prop_ro(
          "seed", [](const Mixture& self) { return self.options().seed; },
          "The number that decides the order.")
      .def_prop_ro(
          "shuffle", [](const Mixture& self) { return self.options().shuffle; },
          "False if every epoch of a source has the source's own order.")
      .def_prop_ro(
          "first", [](const Mixture& self) { return self.options().first; },
          "The position from which on the weights are these.")
      .def_prop_ro(
          "sources",
          [](const Mixture& self) {
            std::vector<Source> sources;
            for (const MixtureSource& one : self.options().sources) {
              sources.emplace_back(one.name, one.samples, one.weight, one.base);
            }
            return sources;
          },
          "The sources as they were given.")
      .def(
          "indices",
          [](const Mixture& self, int64_t first, int64_t last) {
            return self.indices({checked(self, first), checked(self, last)});
          },
          nb::arg("first"), nb::arg("last"),
          "The samples at the positions [first, last). Those of the first source have\n"
          "the first numbers.")
      .def(
          "step",
          [](const Mixture& self, int64_t cursor) {
            const Positions batch = unwrap(self.batch_at(checked(self, cursor)));
            return std::pair(batch.first, batch.last);
          },
          nb::arg("cursor"), "The positions (first, last) of the next batch.")
      .def(
          "given",
          [](const Mixture& self, int64_t cursor) {
            return self.given(checked(self, cursor));
          },
          nb::arg("cursor"),
          "How many samples each source has given before the position `cursor`.")
      .def(
          "with_weights",
          [](const Mixture& self, int64_t cursor, const std::vector<int64_t>& weights) {
            if (weights.size() != self.options().sources.size()) {
              throw Raised(invalid("weights: {}; expected one for each of {} sources",
                                   weights.size(), self.options().sources.size()));
            }
            return unwrap(self.with_weights(checked(self, cursor), weights));
          },
          nb::arg("cursor"), nb::arg("weights"),
          "The same with other weights from the position `cursor` on.");
}

}  // namespace holdfast::python
