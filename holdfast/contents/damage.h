// What is wrong with stored bytes, and the progress of looking for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace holdfast {

// One thing that is wrong with a step or with a file of another format.
struct Damage {
  std::string file{};
  // The tensors that have bytes there, if they are known.
  std::vector<std::string> tensors{};
  // The number of the chunk in the shard of a step. -1 if the damage is not that of a
  // chunk.
  int64_t chunk = -1;
  // The first byte that is wrong, as far as it is known.
  int64_t offset = 0;
  // How many bytes are wrong, as far as it is known. 0 for the whole file.
  int64_t bytes = 0;
  std::string what{};
  friend bool operator==(const Damage&, const Damage&) = default;
};

// Example: "rank-0000.safetensors: chunk 3 (bytes 8192 to 12288; w1, w2) has crc ...;
// expected ..."
std::string to_string(const Damage& damage);

// Called now and then with the bytes that were read so far, and with all bytes that will
// be read.
using Progress = std::function<void(int64_t done, int64_t total)>;

// The result of checking every checksum of a file or folder (Format::verify).
struct FormatReport {
  std::vector<Damage> damage{};  // all of it, in order of file and offset
  int64_t bytes_read = 0;
  // Whether every byte of every tensor was checked. False if the format has no
  // checksums, or if the writer left some out.
  bool checked = false;
};

}  // namespace holdfast
