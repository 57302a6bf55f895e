// Finds the word that a mistyped word was meant to be.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace holdfast {

// The known word that is nearest to `word`: one that begins with it, or one that a few
// typing errors turn into it. A typing error is a missing, additional or wrong letter, or
// two letters in the wrong order; one is allowed for every three letters of `word`.
// Returns nullopt if no word is near.
std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> known);

}  // namespace holdfast
