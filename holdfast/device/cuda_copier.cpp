// Makes the text of the kernel that copies rows.
#include "holdfast/device/cuda_copier_internal.h"

#include <fmt/format.h>

namespace holdfast {
namespace {

constexpr int kAhead = 4;

constexpr const char* kBegin = R"(
.version 6.0
.target sm_60
.address_size 64

.visible .entry holdfast_copy_rows(.param .align 8 .b8 table[4032])
{
  .reg .pred %p<4>, %over;
  .reg .b32 %r<4>, %v<16>, %row, %column, %rows, %columns, %row_step, %column_step;
  .reg .b64 %entry, %to, %from, %bytes, %count, %to_pitch, %from_pitch, %x, %y, %a<4>;

  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %x, %r0, 48;
  mov.b64 %entry, table;
  add.s64 %entry, %entry, %x;
  ld.param.u64 %to, [%entry];
  ld.param.u64 %from, [%entry+8];
  ld.param.u64 %bytes, [%entry+16];
  ld.param.u64 %count, [%entry+24];
  ld.param.u64 %to_pitch, [%entry+32];
  ld.param.u64 %from_pitch, [%entry+40];

  shr.u64 %x, %bytes, 4;
  cvt.u32.u64 %columns, %x;
  cvt.u32.u64 %rows, %count;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mad.lo.u32 %r0, %r0, %r1, %r2;
  mul.lo.u32 %r1, %r3, %r1;
  div.u32 %row, %r0, %columns;
  rem.u32 %column, %r0, %columns;
  div.u32 %row_step, %r1, %columns;
  rem.u32 %column_step, %r1, %columns;

next:
  setp.ge.u32 %over, %row, %rows;
  @%over bra done;
)";

// Begins to load 16 bytes if there is a row left, keeps their target, and goes on.
std::string load(int number) {
  return fmt::format(R"(
  setp.lt.u32 %p{0}, %row, %rows;
  cvt.u64.u32 %y, %row;
  mul.wide.u32 %x, %column, 16;
  mad.lo.u64 %a{0}, %y, %to_pitch, %x;
  add.u64 %a{0}, %a{0}, %to;
  mad.lo.u64 %x, %y, %from_pitch, %x;
  add.u64 %x, %x, %from;
  @%p{0} ld.global.v4.u32 {{%v{1}, %v{2}, %v{3}, %v{4}}}, [%x];
  add.u32 %row, %row, %row_step;
  add.u32 %column, %column, %column_step;
  setp.ge.u32 %over, %column, %columns;
  @%over sub.u32 %column, %column, %columns;
  @%over add.u32 %row, %row, 1;
)",
                     number, 4 * number, 4 * number + 1, 4 * number + 2,
                     4 * number + 3);
}

std::string store(int number) {
  return fmt::format("  @%p{0} st.global.v4.u32 [%a{0}], {{%v{1}, %v{2}, %v{3}, %v{4}}};\n",
                     number, 4 * number, 4 * number + 1, 4 * number + 2,
                     4 * number + 3);
}

}  // namespace

std::string make_row_copier() {
  std::string text = kBegin;
  for (int i = 0; i < kAhead; ++i) text += load(i);
  for (int i = 0; i < kAhead; ++i) text += store(i);
  return text + "  bra next;\n\ndone:\n  ret;\n}\n";
}

}  // namespace holdfast
