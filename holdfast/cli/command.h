// A verb of the command line: its name, its options, which fill variables, and the
// function that carries it out.
//
// Verbs describe their options as data and do not use the library that parses them.
// Only cli.cpp includes that library, because it takes half a minute to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "holdfast/cli/cli.h"
#include "holdfast/env/env.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

// An option of a verb. If it is given, its value is written to the variable. A bool is
// a flag, and a vector takes one or more values.
struct Option {
  // "--hosts" or "-q,--quiet"; or "RUN", without dashes, for an argument that is found by
  // its position.
  std::string name;
  std::string help;
  std::variant<std::string*, bool*, int64_t*, std::optional<int64_t>*,
               std::vector<std::string>*>
      into;
  bool required = false;
  // The values that shell completion offers. Other values may be allowed, too.
  std::vector<std::string> choices{};
};

struct Context {
  Env& env;
  std::ostream& out;
  std::ostream& err;
  Terminal terminal{};
  bool quiet = false;    // -q: print only errors
  bool verbose = false;  // -v: do not shorten anything
  bool json = false;     // --json: print a report for programs
};

// A path that failed, in a verb that takes several paths.
struct FailedPath {
  std::string path;
  Error error;
};

// Prints each error on err. Returns kDamage if a path is damaged, otherwise the code of
// the first error, and kDone if there are none.
ExitCode tell_failed(const Context& context, std::span<const FailedPath> failed);

// Prints on err which newer steps of a run were skipped, and why.
void tell_skipped(const Context& context, const Found& found);

struct Verb {
  std::string name;
  std::string summary;  // one line
  // Examples, which --help shows.
  std::string footer;
  std::vector<Option> options;
  // Carries out the verb. If it fails, the error is printed on err and determines the
  // exit code.
  std::function<Result<ExitCode>(const Context&)> run;
  // True for verbs that look for faults and print those they find to `out`. Such a verb
  // obeys Context::quiet itself. For other verbs, `out` swallows everything with -q.
  bool finds_faults = false;
  // If set, gets the words after "--", which are no options of the verb. For verbs that
  // start a program.
  std::vector<std::string>* command = nullptr;
};

// Prints scripts that complete `verbs`, which must outlive it and may contain it.
Verb completion_verb(const std::vector<Verb>& verbs);
Verb campaign_verb();
Verb convert_verb();
Verb diff_verb();
Verb export_verb();
Verb gc_verb();
Verb index_verb();
Verb inject_verb();
Verb interval_verb();
Verb launch_verb();
Verb ls_verb();
Verb mount_verb();
Verb pin_verb();
Verb plan_verb();
Verb resize_verb();
Verb rehearse_verb();
Verb bench_verb();
Verb repair_verb();
Verb reshard_verb();
Verb seal_verb();
Verb show_verb();
Verb simulate_verb();
Verb unpin_verb();
Verb verify_verb();

}  // namespace holdfast
