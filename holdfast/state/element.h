// The bits of one element of a tensor: as text, as a number, and as another number.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// The canonical bytes of an element, which are little-endian: bit b of the element is
// bit b % 8 of byte b / 8. Bytes after the element are 0.
using ElementBits = std::array<std::byte, 16>;

ElementBits element_bits(ByteView bytes);
bool has_bit(const ElementBits& bits, int bit);
ElementBits with_flipped(ElementBits bits, int bit);
ElementBits difference(const ElementBits& a, const ElementBits& b);  // XOR
// The numbers of the bits that are set, from the lowest up.
std::vector<int> set_bits(const ElementBits& bits);

// All bits as one number in hexadecimal digits, the highest first: bit 30 of an F32 is
// "40000000".
std::string bits_text(Dtype dtype, const ElementBits& bits);
// Reads what bits_text() wrote. Fails with kInvalid on any other text.
Result<ElementBits> parse_bits(Dtype dtype, std::string_view text);

// Enough digits to tell any two numbers apart.
inline constexpr int kAllDigits = 17;
// The number for people: "0.0213", "7.25e+36", "nan", "1+2i". Integers are exact.
std::string value_text(Dtype dtype, const ElementBits& bits, int digits = 3);
// "0.0213 -> 7.25e+36", with as many digits as the difference needs.
std::string change_text(Dtype dtype, const ElementBits& before,
                        const ElementBits& after);
// "bit 30", "bits 3, 30", "no bit".
std::string bits_in_words(const ElementBits& mask);
// False if the element, or a part of a complex one, is infinite or NaN.
bool is_finite(Dtype dtype, const ElementBits& bits);

// The element that stands for a number; a complex one has the imaginary part 0. Rounds
// to the nearest number of the dtype. A number that is too large becomes infinity, or
// the largest number if the dtype has no infinity. Fails with kInvalid if the dtype
// cannot hold the number: a fraction as an integer, an integer that is too large, a
// bool that is neither 0 nor 1.
Result<ElementBits> element_of(Dtype dtype, double number);
// The element times a factor, both parts of a complex one. Integers are rounded to the
// nearest integer. Fails as element_of() does.
Result<ElementBits> scaled(Dtype dtype, const ElementBits& bits, double factor);

// The index of an element, given by its place in row-major order, in each dimension.
std::vector<int64_t> index_of(const Shape& shape, int64_t element);
// The place of an element of a tensor among the elements of a box of it, both in
// row-major order; nullopt if the box does not have the element.
std::optional<int64_t> place_in_box(const Shape& shape, const Box& box,
                                    int64_t element);
// "[3, 0, 1, 2]"; "[]" for the element of a scalar.
std::string index_text(const Shape& shape, int64_t element);

}  // namespace holdfast
