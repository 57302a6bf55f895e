// Writes the index of a TensorFlow checkpoint (the format is in table_reader.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::bundle {

// Collects entries in order of key.
class TableWriter {
 public:
  // Aborts unless the key comes after the one before.
  void add(std::string_view key, std::string_view value);
  // Returns the whole file.
  std::string finish() &&;

 private:
  // A block under construction.
  struct Block {
    std::string bytes{};
    std::string restarts{};  // 4 bytes each
    uint32_t restart_count = 0;
    int entries_since_restart = 0;
    std::string last_key{};

    void add(std::string_view key, std::string_view value, int restart_interval);
  };

  // Appends a block with its trailer to the file, and returns its handle.
  std::string write_block(Block block);
  void finish_data_block();

  std::string file_;
  Block data_;
  Block index_;
  std::string last_key_;
  bool empty_ = true;
};

}  // namespace holdfast::bundle
