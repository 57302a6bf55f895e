// 128-bit integers, for products of sizes that must not wrap.
#pragma once

namespace holdfast {

__extension__ using Wide = __int128;

}  // namespace holdfast
