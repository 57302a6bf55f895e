// What is recorded about a trial: one line of JSON in the file trials.jsonl of a
// campaign's folder. docs/formats.md lists the fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/campaign/outcome.h"
#include "holdfast/corruption/flip_plan.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"

namespace holdfast {

// A flip, and what is known about its tensor.
struct RecordedFlip {
  PlannedFlip flip{};  // without its index when it was read from a record
  Role role = Role::kParameter;
  bool guessed = false;  // whether only the tensor's name suggests the role
  std::string layer{};

  friend bool operator==(const RecordedFlip&, const RecordedFlip&) = default;
};

struct TrialRecord {
  int64_t trial = 0;
  int64_t seed = 0;
  std::vector<RecordedFlip> flips{};
  std::vector<PlannedByte> bytes{};
  Outcome outcome = Outcome::kBenign;
  int64_t steps = 0;  // the last step that was logged
  std::optional<double> final_loss{}, final_accuracy{};
  std::optional<double> first_accuracy{};  // that of step 0, evaluated after loading
  double seconds = 0;
  std::string why{};
  // StateDistance::relative, if states are compared and the trial has one.
  std::optional<std::map<std::string, double>> distance{};
};

// One line, without the line feed.
std::string encode_record(const TrialRecord& record);
// Fails with kInvalid, naming `where`, for anything else than a record.
Result<TrialRecord> decode_record(std::string_view line, const std::string& where);

// Appends records to a file. A record is durable when add() returns.
class TrialFile {
 public:
  // Creates the file, or opens it and removes an incomplete last line, which a crash may
  // have left. `env` must outlive it.
  static Result<TrialFile> open(Env& env, const Path& path);

  // What was in the file when it was opened.
  const std::vector<TrialRecord>& records() const { return records_; }
  Result<void> add(const std::vector<TrialRecord>& records);

 private:
  TrialFile(std::unique_ptr<File> file, std::vector<TrialRecord> records)
      : file_(std::move(file)), records_(std::move(records)) {}

  std::unique_ptr<File> file_;
  std::vector<TrialRecord> records_;
};

// The records of a file. An incomplete last line is left out.
Result<std::vector<TrialRecord>> read_records(Env& env, const Path& path);

}  // namespace holdfast
