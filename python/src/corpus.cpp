// Bindings of dataset/corpus.h: names, types and docs only.
#include "holdfast/dataset/corpus.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "env.h"
#include "errors.h"
#include "holdfast/dataset/tar_members.h"

namespace holdfast::python {
namespace {

using Report = std::function<void(std::string, int64_t, int64_t)>;

// Reports a few times a second, and whenever a file is finished. Needs no GIL.
IndexProgress throttled(const Report& report) {
  return [report, last = Instant()](const Path& file, int64_t done,
                                    int64_t total) mutable {
    constexpr Duration kPause = std::chrono::milliseconds(200);
    const Instant now = env().now();
    if (done < total && now - last < kPause) return;
    last = now;
    const nb::gil_scoped_acquire locked;
    report(file.native(), done, total);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
}

// Python owns the result.
Corpus* open_corpus(const std::vector<std::string>& patterns,
                             const std::optional<std::string>& kind, int64_t context,
                             const std::optional<std::string>& dtype,
                             const std::optional<Path>& index, int threads,
                             const Report& report) {
  CorpusOptions options{.context = context, .threads = threads};
  if (kind) options.kind = unwrap(parse_corpus_kind(*kind));
  if (dtype) options.dtype = unwrap(parse_token_dtype(*dtype));
  if (index) options.index_folder = *index;
  const nb::gil_scoped_release unlocked;
  return unwrap(Corpus::open(env(), patterns, std::move(options), throttled(report)))
      .release();
}

// A bytes object for each sample. The samples are read into their memory.
nb::list read_samples(const Corpus& self, const std::vector<int64_t>& samples) {
  std::vector<SampleRead> reads;
  reads.reserve(samples.size());
  nb::list found;
  for (const FileRange& range : unwrap(self.ranges_of(samples))) {
    PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, range.size());
    if (bytes == nullptr) nb::raise_python_error();
    found.append(nb::steal(bytes));
    auto* const memory = reinterpret_cast<std::byte*>(PyBytes_AsString(bytes));
    reads.push_back({range, ByteSpan(memory, static_cast<size_t>(range.size()))});
  }
  const nb::gil_scoped_release unlocked;
  unwrap(self.read(reads));
  return found;
}

// The fields of a sample of an archive, and its key.
nb::dict fields_of(const nb::bytes& sample) {
  const ByteView bytes = bytes_of(std::string_view(sample.c_str(), sample.size()));
  nb::dict fields;
  for (const TarMember& member : unwrap(tar_members("sample", bytes))) {
    const TarField field = tar_field_of(member.name);
    if (field.field.empty()) continue;
    const std::string_view content = text_of(bytes).substr(
        static_cast<size_t>(member.begin), static_cast<size_t>(member.size));
    fields["__key__"] = field.key;
    fields[field.field.c_str()] = nb::bytes(content.data(), content.size());
  }
  return fields;
}

std::vector<std::string> names_of(const Corpus& self) {
  std::vector<std::string> names;
  for (const Path& file : self.files()) names.push_back(file.native());
  return names;
}

}  // namespace

void bind_corpus(nb::module_& m) {
  nb::class_<Corpus>(m, "Corpus", "The native side of holdfast.data.Files.")
      .def(nb::new_(&open_corpus), nb::arg("patterns"), nb::arg("kind").none(),
           nb::arg("context"), nb::arg("dtype").none(), nb::arg("index").none(),
           nb::arg("threads"), nb::arg("report"))
      .def("__len__", &Corpus::samples)
      .def_prop_ro("files", &names_of, "The files, in the order of their samples.")
      .def_prop_ro(
          "kind", [](const Corpus& self) { return std::string(name_of(self.kind())); },
          "\"text\", \"tokens\", \"megatron\", \"tar\" or \"tfrecord\".")
      .def_prop_ro(
          "dtype",
          [](const Corpus& self) -> std::optional<std::string> {
            if (!self.dtype()) return std::nullopt;
            return std::string(name_of(*self.dtype()));
          },
          "The type of the numbers in a sample; None if it is no array of numbers.")
      .def_prop_ro("fingerprint", &Corpus::fingerprint,
                   "32 digits, which change with any byte of the files.")
      .def_static("fields_of", &fields_of, nb::arg("sample"),
                  "The members of a sample of a tar archive, by field.")
      .def("read", &read_samples, nb::arg("samples"), "The bytes of each of the samples.");
}

}  // namespace holdfast::python
