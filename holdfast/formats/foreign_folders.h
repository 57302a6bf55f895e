// Folders of other tools that Holdfast does not read, but knows by their names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace holdfast {

// Says what a folder with these names is, and what to give Holdfast instead of it. Returns
// nullopt for any other folder.
std::optional<std::string_view> describe_foreign_folder(
    std::span<const std::string> names);

}  // namespace holdfast
