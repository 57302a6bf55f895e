// 128-bit integers, for products of sizes that must not wrap.
#pragma once

namespace holdfast {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

}  // namespace holdfast
