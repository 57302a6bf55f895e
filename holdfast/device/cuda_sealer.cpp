// Makes the text of the kernel. Parts that come several times are made by functions.
#include "holdfast/device/cuda_sealer_internal.h"

#include <fmt/format.h>

#include "holdfast/state/mix64.h"

namespace holdfast {
namespace {

constexpr int kLanes = 2;
constexpr int kWords = 4;  // that a thread takes of a block of 1024
constexpr int kAhead = 4;  // blocks that are loaded at once

// %z = mix64(%z), with %t as a help.
std::string mix64_of(const std::string& z) {
  return fmt::format(R"(
  add.u64 {0}, {0}, 0x9E3779B97F4A7C15U;
  shr.u64 %t, {0}, 30;
  xor.b64 {0}, {0}, %t;
  mul.lo.u64 {0}, {0}, 0xBF58476D1CE4E5B9U;
  shr.u64 %t, {0}, 27;
  xor.b64 {0}, {0}, %t;
  mul.lo.u64 {0}, {0}, 0x94D049BB133111EBU;
  shr.u64 %t, {0}, 31;
  xor.b64 {0}, {0}, %t;
)",
                     z);
}

// The thread's constants: %k0 to %k3 of lane 0, %k4 to %k7 of lane 1.
std::string make_constants() {
  std::string text;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int word = 0; word < kWords; ++word) {
      text += fmt::format(R"(
  shl.b32 %r0, %thread, 2;
  cvt.u64.u32 %x, %r0;
  add.u64 %x, %x, {:#x}U;
)",
                          (static_cast<uint64_t>(lane + 1) << 32) +
                              static_cast<uint64_t>(word));
      text += mix64_of("%x");
      text += fmt::format("  cvt.u32.u64 %r0, %x;\n  or.b32 %k{}, %r0, 1;\n",
                          lane * kWords + word);
    }
  }
  return text;
}

// A_j(%h0 + the thread's place in its warp), as two halves %a0 and %a1, %a2 and %a3.
std::string make_factors() {
  std::string text;
  for (int lane = 0; lane < kLanes; ++lane) {
    text += fmt::format(R"(
  cvt.u64.u32 %x, %lane;
  add.u64 %x, %x, %h0;
  xor.b64 %x, %x, {:#x}U;
)",
                        mix64(static_cast<uint64_t>(lane)));
    text += mix64_of("%x");
    text += fmt::format("  or.b64 %x, %x, 1;\n  mov.b64 {{%a{}, %a{}}}, %x;\n",
                        2 * lane, 2 * lane + 1);
  }
  return text;
}

// Adds the words %w(first) and the three behind it, which are of the block %i of this
// group.
std::string add_words(int first) {
  std::string text;
  for (int lane = 0; lane < kLanes; ++lane) {
    text += fmt::format(R"(
  shfl.sync.idx.b32 %r0, %a{}, %i, 31, 0xffffffff;
  shfl.sync.idx.b32 %r1, %a{}, %i, 31, 0xffffffff;
  mov.b64 %x, {{%r0, %r1}};
)",
                        2 * lane, 2 * lane + 1);
    for (int word = 0; word < kWords; ++word) {
      text += fmt::format("  {}.wide.u32 %t, %w{}, %k{}{};\n",
                          word == 0 ? "mul" : "mad", first + word,
                          lane * kWords + word, word == 0 ? "" : ", %t");
    }
    text += fmt::format("  mad.lo.u64 %sum{0}, %x, %t, %sum{0};\n", lane);
  }
  return text + "  add.u32 %i, %i, 1;\n";
}

std::string load_words(int first, int distance) {
  return fmt::format("  ld.global.v4.u32 {{%w{}, %w{}, %w{}, %w{}}}, [%at+{}];\n", first,
                     first + 1, first + 2, first + 3, distance);
}

// Loads those bytes of the words %w0 to %w3 that belong to the run.
std::string load_bytes() {
  std::string text;
  for (int byte = 0; byte < kWords * 4; ++byte) {
    text += fmt::format(R"(
  mov.u32 %r0, 0;
  add.u64 %t, %c, {0};
  setp.ge.u64 %p0, %t, %first;
  setp.lt.and.u64 %p0, %t, %end, %p0;
  @%p0 ld.global.u8 %r0, [%at+{0}];
  shl.b32 %r0, %r0, {1};
  or.b32 %w{2}, %w{2}, %r0;
)",
                        byte, byte % 4 * 8, byte / 4);
  }
  return text;
}

// Adds up the sums of the 32 threads of a warp: its first thread has them then.
std::string add_up_warp() {
  std::string text;
  for (int distance = 16; distance > 0; distance /= 2) {
    for (int lane = 0; lane < kLanes; ++lane) {
      text += fmt::format(R"(
  mov.b64 {{%r0, %r1}}, %sum{0};
  shfl.sync.down.b32 %r0, %r0, {1}, 31, 0xffffffff;
  shfl.sync.down.b32 %r1, %r1, {1}, 31, 0xffffffff;
  mov.b64 %x, {{%r0, %r1}};
  add.u64 %sum{0}, %sum{0}, %x;
)",
                          lane, distance);
    }
  }
  return text;
}

std::string add_up_block() {
  std::string text;
  for (unsigned warp = 1; warp < kSealThreads / 32; ++warp) {
    text += fmt::format(R"(
  ld.shared.v2.u64 {{%x, %t}}, [%shared+{}];
  add.u64 %sum0, %sum0, %x;
  add.u64 %sum1, %sum1, %t;
)",
                        warp * 16);
  }
  return text;
}

constexpr const char* kBegin = R"(
.version 6.0
.target sm_70
.address_size 64

.visible .entry holdfast_seal(.param .align 8 .b8 table[4032], .param .u64 sums)
{
  .shared .align 16 .b8 of_warps[128];
  .reg .pred %p<2>, %aligned;
  .reg .b32 %r<4>, %thread, %lane, %i, %n, %x0, %nx;
  .reg .b32 %w<16>, %k<8>, %a<4>;
  .reg .b64 %entry, %from, %offset, %bytes, %rows, %from_pitch, %offset_pitch;
  .reg .b64 %row, %row_step, %group, %group_step, %h0, %h_end, %lo, %c, %at, %base;
  .reg .b64 %first, %end, %x, %t, %sum<2>, %shared;

  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %x, %r0, 48;
  mov.b64 %entry, table;
  add.s64 %entry, %entry, %x;
  ld.param.u64 %from, [%entry];
  ld.param.u64 %offset, [%entry+8];
  ld.param.u64 %bytes, [%entry+16];
  ld.param.u64 %rows, [%entry+24];
  ld.param.u64 %from_pitch, [%entry+32];
  ld.param.u64 %offset_pitch, [%entry+40];
  mov.u32 %thread, %tid.x;
  and.b32 %lane, %thread, 31;
  mov.u64 %sum0, 0;
  mov.u64 %sum1, 0;
)";

// Of a single row, block x takes each nx-th group of 32 blocks of words. Of several rows
// it takes each nx-th row.
constexpr const char* kLoops = R"(
  mov.u32 %x0, %ctaid.x;
  mov.u32 %nx, %nctaid.x;
  cvt.u64.u32 %x, %x0;
  cvt.u64.u32 %t, %nx;
  setp.eq.u64 %p0, %rows, 1;
  selp.b64 %row, 0, %x, %p0;
  selp.b64 %row_step, 1, %t, %p0;
  selp.b64 %group, %x, 0, %p0;
  selp.b64 %group_step, %t, 1, %p0;
  shl.b64 %group, %group, 5;
  shl.b64 %group_step, %group_step, 5;

next_row:
  setp.ge.u64 %p0, %row, %rows;
  @%p0 bra add_up;
  mul.lo.u64 %first, %row, %offset_pitch;
  add.u64 %first, %first, %offset;
  add.u64 %end, %first, %bytes;
  mul.lo.u64 %base, %row, %from_pitch;
  add.u64 %base, %base, %from;
  sub.u64 %base, %base, %first;
  and.b64 %t, %base, 15;
  setp.eq.u64 %aligned, %t, 0;
  shr.u64 %h0, %first, 12;
  add.u64 %h0, %h0, %group;
  add.u64 %t, %end, 4095;
  shr.u64 %h_end, %t, 12;
  add.u64 %row, %row, %row_step;

next_group:
  setp.ge.u64 %p0, %h0, %h_end;
  @%p0 bra next_row;
)";

constexpr const char* kBlocks = R"(
  sub.u64 %t, %h_end, %h0;
  min.u64 %t, %t, 32;
  cvt.u32.u64 %n, %t;
  mov.u32 %i, 0;
  shl.b64 %lo, %h0, 12;
  shl.b32 %r0, %thread, 4;
  cvt.u64.u32 %c, %r0;
  add.u64 %c, %c, %lo;
  add.u64 %h0, %h0, %group_step;

next_block:
  setp.ge.u32 %p0, %i, %n;
  @%p0 bra next_group;
  add.u64 %at, %base, %c;
  add.u32 %r0, %i, 4;
  setp.gt.u32 %p0, %r0, %n;
  @%p0 bra one;
  setp.lt.u64 %p0, %lo, %first;
  @%p0 bra one;
  add.u64 %t, %lo, 16384;
  setp.gt.u64 %p0, %t, %end;
  @%p0 bra one;
  @!%aligned bra one;
)";

constexpr const char* kOne = R"(
  add.u64 %lo, %lo, 16384;
  add.u64 %c, %c, 16384;
  bra next_block;

one:
  mov.u32 %w0, 0;
  mov.u32 %w1, 0;
  mov.u32 %w2, 0;
  mov.u32 %w3, 0;
  add.u64 %t, %c, 16;
  setp.le.u64 %p0, %t, %first;
  @%p0 bra loaded;
  setp.ge.u64 %p0, %c, %end;
  @%p0 bra loaded;
  @!%aligned bra bytes;
  setp.lt.u64 %p0, %c, %first;
  @%p0 bra bytes;
  setp.gt.u64 %p0, %t, %end;
  @%p0 bra bytes;
)";

constexpr const char* kLoaded = R"(
  add.u64 %lo, %lo, 4096;
  add.u64 %c, %c, 4096;
  bra next_block;

add_up:
)";

constexpr const char* kToShared = R"(
  mov.u64 %shared, of_warps;
  setp.ne.u32 %p0, %lane, 0;
  @%p0 bra wait;
  shr.u32 %r0, %thread, 5;
  mul.wide.u32 %x, %r0, 16;
  add.u64 %x, %x, %shared;
  st.shared.v2.u64 [%x], {%sum0, %sum1};

wait:
  bar.sync 0;
  setp.ne.u32 %p0, %thread, 0;
  @%p0 bra done;
)";

constexpr const char* kEnd = R"(
  ld.param.u64 %at, [sums];
  mov.u32 %r0, %ctaid.y;
  mov.u32 %r1, 8;
  mad.lo.u32 %r0, %r0, %r1, %x0;
  mul.wide.u32 %x, %r0, 16;
  add.u64 %at, %at, %x;
  st.global.v2.u64 [%at], {%sum0, %sum1};

done:
  ret;
}
)";

}  // namespace

std::string make_sealer() {
  std::string text = kBegin + make_constants() + kLoops + make_factors() + kBlocks;
  for (int block = 0; block < kAhead; ++block) {
    text += load_words(block * kWords, block * 4096);
  }
  for (int block = 0; block < kAhead; ++block) text += add_words(block * kWords);
  text += kOne + load_words(0, 0) + "  bra loaded;\n\nbytes:\n" + load_bytes();
  text += "\nloaded:\n" + add_words(0) + kLoaded + add_up_warp() + kToShared;
  return text + add_up_block() + kEnd;
}

}  // namespace holdfast
