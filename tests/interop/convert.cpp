// Reads one file and writes its contents to another one. Tests then read the new file
// with foreign libraries: interop_convert FROM TO [FORMAT]
#include <fmt/core.h>

#include <cstdio>

#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"

namespace {

using namespace holdfast;

Result<void> convert(const char* from, const char* to, const char* name) {
  const auto env = make_posix_env();
  const Contents contents = HOLDFAST_TRY(open_file(*env, from));
  const Format* format = nullptr;
  if (name != nullptr) format = HOLDFAST_TRY(find_format(name));
  return write_file(*env, to, contents, {.format = format});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto done = convert(argv[1], argv[2], argc > 3 ? argv[3] : nullptr);
  if (done.ok()) return 0;
  fmt::print(stderr, "{}\n", done.error().message());
  return 1;
}
