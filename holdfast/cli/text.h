// Numbers and tables as a person likes to read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast {

// "45.11 GB": decimal units, two decimals. Exact bytes are what --json is for.
std::string human_bytes(int64_t bytes);
// "1,552"
std::string human_count(int64_t count);
// "7.06 s", "320.00 ms"
std::string human_time(int64_t nanoseconds);

// Rows of cells, the first column to the left and the others to the right, two spaces
// between columns. A row of fewer cells is fine.
class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace holdfast
