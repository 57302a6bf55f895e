#include "holdfast/cli/objects_text.h"

#include <fmt/ranges.h>

#include <map>

#include "holdfast/cli/text.h"
#include "holdfast/inspect/training_objects.h"
#include "holdfast/state/object_json.h"

namespace holdfast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kNamesShown = 12;  // more names are counted only
constexpr size_t kWordShown = 60;   // the longest name or value
constexpr size_t kTextShown = 200;  // an object with a longer text is shown by its keys

// Shortens bytes and texts of many hexadecimal digits in the text of an object
// (object_json.h):
//
//   {"$bytes":"0000008000000000be58cba900000000..., 5,000 bytes"}
std::string fold_hex(std::string_view text) {
  constexpr std::string_view kBytes = "\"$bytes\":\"";
  constexpr size_t kDigits = 32, kFolded = 64;
  std::string out;
  for (size_t quote; (quote = text.find('"')) != text.npos;) {
    const size_t begin = quote + 1;
    const size_t end =
        std::min(text.find_first_not_of("0123456789abcdef", begin), text.size());
    out += text.substr(0, begin);
    const auto digits = static_cast<int64_t>(end - begin);
    if (end - begin > kFolded && text.substr(end).starts_with('"')) {
      const bool bytes = out.ends_with(kBytes);
      out += fmt::format("{}..., {} {}", text.substr(begin, kDigits),
                         human_count(bytes ? digits / 2 : digits),
                         bytes ? "bytes" : "digits");
    } else {
      out += text.substr(begin, end - begin);
    }
    text.remove_prefix(end);
  }
  return out.append(text);
}

const Object::Dict* dict_of(const Object* object) {
  return object == nullptr ? nullptr : object->as<Object::Dict>();
}

std::string word_of(const Object& object) {
  const auto* text = object.as<std::string>();
  return shorten(printable(text != nullptr ? *text : object_text(object, true)),
                 kWordShown);
}

// Adds "a, b, c" under the label; "and 5 more" if there are many, nothing if none.
void add_row(const std::string& label, std::vector<std::string> words, Rows& rows) {
  if (words.empty()) return;
  const size_t all = words.size();
  if (all > kNamesShown) {
    words.resize(kNamesShown);
    words.push_back(fmt::format("and {} more", all - kNamesShown));
  }
  rows.push_back({label, fmt::format("{}", fmt::join(words, ", "))});
}

// The keys of a dict, each with what `also` says about its value.
template <typename Also>
std::vector<std::string> keys_of(const Object* object, const Also& also) {
  std::vector<std::string> words;
  const Object::Dict* dict = dict_of(object);
  if (dict == nullptr) return words;
  for (const auto& [key, value] : dict->items) {
    if (const auto text = also(key, value)) words.push_back(word_of(key) + *text);
  }
  return words;
}

bool is_empty(const Object& value) {
  const auto* list = value.as<Object::List>();
  const auto* dict = value.as<Object::Dict>();
  return value.none() || (list != nullptr && list->items.empty()) ||
         (dict != nullptr && dict->items.empty());
}

bool is_key(const Object& key, std::string_view name) {
  const auto* text = key.as<std::string>();
  return text != nullptr && *text == name;
}

// The objects and the data loader, which some ranks save for themselves.
std::vector<std::string> things_of(const PathSummary& shown) {
  std::map<std::string, bool> names;
  const auto add = [&](const Object& objects) {
    const auto plain = [](const Object& key, const Object&) {
      return is_key(key, "values") ? std::optional<std::string>() : "";
    };
    for (std::string& name : keys_of(find_key(objects, "things"), plain)) {
      names[std::move(name)] = true;
    }
  };
  add(shown.objects);
  for (const auto& [rank, object] : shown.rank_objects) add(object);
  std::vector<std::string> words;
  for (const auto& [name, there] : names) words.push_back(name);
  return words;
}

// Generators are saved by each rank; all ranks have the same kinds.
std::vector<std::string> generators_of(const PathSummary& shown) {
  if (shown.rank_objects.empty()) return {};
  const Object& own = shown.rank_objects.begin()->second;
  const Object* all = find_key(own, "generators");
  const auto of_program = [](const Object& key, const Object& value) {
    const bool is_listed = is_key(key, "extra") || is_key(key, "threads");
    return is_listed || is_empty(value) ? std::optional<std::string>() : "";
  };
  const auto plain = [](const Object&, const Object&) { return std::optional(""); };
  std::vector<std::string> words = keys_of(all, of_program);
  const Object* extra = all == nullptr ? nullptr : find_key(*all, "extra");
  for (std::string& word : keys_of(extra, plain)) words.push_back(std::move(word));
  return words;
}

Rows training_summary(const PathSummary& shown) {
  Rows rows;
  const auto kind = [](const Object&, const Object& value) {
    return std::optional(fmt::format(" ({})", word_of(value)));
  };
  const auto number = [](const Object&, const Object& value) {
    return std::optional("=" + word_of(value));
  };
  add_row("optimizers", keys_of(find_key(shown.objects, "optimizers"), kind), rows);
  add_row("objects", things_of(shown), rows);
  const Object* things = find_key(shown.objects, "things");
  const Object* values = things == nullptr ? nullptr : find_key(*things, "values");
  add_row("values", keys_of(values, number), rows);
  add_row("generators", generators_of(shown), rows);
  return rows;
}

void add_plain(const std::string& label, const Object& object, Rows& rows) {
  if (object.none()) return;
  const std::string text = object_text(object, true);
  if (text.size() <= kTextShown || dict_of(&object) == nullptr) {
    rows.push_back({label, shorten(printable(text), kTextShown)});
    return;
  }
  add_row(label, keys_of(&object, [](const Object&, const Object&) {
            return std::optional("");
          }),
          rows);
}

}  // namespace

std::string object_text(const Object& object, bool fold) {
  const Result<std::string> text = encode_object(object);
  if (!text.ok()) return text.error().message();
  return fold ? fold_hex(*text) : *text;
}

Rows objects_summary(const PathSummary& shown) {
  const bool by_checkpointer = find_key(shown.objects, "things") != nullptr &&
                               find_key(shown.objects, "optimizers") != nullptr;
  if (by_checkpointer) return training_summary(shown);
  Rows rows;
  add_plain("objects", shown.objects, rows);
  for (const auto& [rank, object] : shown.rank_objects) {
    if (rows.size() >= kNamesShown) break;
    add_plain(fmt::format("objects of rank {}", rank), object, rows);
  }
  return rows;
}

}  // namespace holdfast
