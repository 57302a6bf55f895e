// A CUDA kernel that makes many copies inside a device. It is PTX text, which the
// driver compiles for the device that it finds. The only parameter of a launch is a
// table of up to kCopiesPerLaunch copies, so that no device memory has to be kept for
// the table. All blocks (x, y) with the same y copy entry y of the table together: each
// thread copies 16 bytes at a time, with four such copies under way at once. The last
// bytes, fewer than 16, are copied one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace holdfast {

// The parameters of a launch have at most 4 KiB on all devices; so many entries fit.
inline constexpr size_t kCopiesPerLaunch = 170;

struct CopyTable {
  struct Entry {
    uint64_t to;
    uint64_t from;
    uint64_t bytes;
  };
  Entry entries[kCopiesPerLaunch];
};
static_assert(sizeof(CopyTable) == 4080);

inline constexpr const char* kCopierName = "holdfast_copy";
inline constexpr const char* kCopier = R"(
.version 6.0
.target sm_60
.address_size 64

.visible .entry holdfast_copy(.param .align 8 .b8 table[4080])
{
  .reg .pred %p<2>;
  .reg .b16 %h;
  .reg .b32 %r<8>;
  .reg .b32 %v<16>;
  .reg .b64 %entry, %to, %from, %bytes, %whole, %at, %stride, %far, %a<8>, %x;

  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %x, %r0, 24;
  mov.b64 %entry, table;
  add.s64 %entry, %entry, %x;
  ld.param.u64 %to, [%entry];
  ld.param.u64 %from, [%entry+8];
  ld.param.u64 %bytes, [%entry+16];

  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r4, %r2;
  mul.wide.u32 %at, %r5, 16;
  mul.wide.u32 %stride, %r6, 16;
  and.b64 %whole, %bytes, -16;

four:
  mul.lo.u64 %far, %stride, 3;
  add.s64 %far, %far, %at;
  setp.ge.u64 %p0, %far, %whole;
  @%p0 bra one;
  add.s64 %a0, %from, %at;
  add.s64 %a1, %a0, %stride;
  add.s64 %a2, %a1, %stride;
  add.s64 %a3, %a2, %stride;
  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a0];
  ld.global.v4.u32 {%v4, %v5, %v6, %v7}, [%a1];
  ld.global.v4.u32 {%v8, %v9, %v10, %v11}, [%a2];
  ld.global.v4.u32 {%v12, %v13, %v14, %v15}, [%a3];
  add.s64 %a4, %to, %at;
  add.s64 %a5, %a4, %stride;
  add.s64 %a6, %a5, %stride;
  add.s64 %a7, %a6, %stride;
  st.global.v4.u32 [%a4], {%v0, %v1, %v2, %v3};
  st.global.v4.u32 [%a5], {%v4, %v5, %v6, %v7};
  st.global.v4.u32 [%a6], {%v8, %v9, %v10, %v11};
  st.global.v4.u32 [%a7], {%v12, %v13, %v14, %v15};
  add.s64 %at, %far, %stride;
  bra four;

one:
  setp.ge.u64 %p0, %at, %whole;
  @%p0 bra rest;
  add.s64 %a0, %from, %at;
  add.s64 %a1, %to, %at;
  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a0];
  st.global.v4.u32 [%a1], {%v0, %v1, %v2, %v3};
  add.s64 %at, %at, %stride;
  bra one;

rest:
  cvt.u64.u32 %x, %r5;
  add.s64 %at, %whole, %x;
  setp.ge.u64 %p1, %at, %bytes;
  @%p1 bra done;
  add.s64 %a0, %from, %at;
  add.s64 %a1, %to, %at;
  ld.global.u8 %h, [%a0];
  st.global.u8 [%a1], %h;

done:
  ret;
}
)";

// A second kernel copies rows, with a table of up to kRowCopiesPerLaunch entries. All
// addresses, sizes and pitches must be multiples of 16. A thread divides only once to find
// its row and its place in the row. Then it goes on by the same number of rows and places
// each time, with four copies under way at once.
inline constexpr size_t kRowCopiesPerLaunch = 84;

struct RowCopyTable {
  struct Entry {
    uint64_t to;
    uint64_t from;
    uint64_t bytes;  // of a row
    uint64_t rows;
    uint64_t to_pitch;
    uint64_t from_pitch;
  };
  Entry entries[kRowCopiesPerLaunch];
};
static_assert(sizeof(RowCopyTable) == 4032);

inline constexpr const char* kRowCopierName = "holdfast_copy_rows";
std::string make_row_copier();

}  // namespace holdfast
