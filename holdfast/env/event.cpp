#include "holdfast/env/event.h"

namespace holdfast {

const EventValue* EventRecord::find(std::string_view field) const {
  for (const auto& [name_of_field, value] : fields) {
    if (name_of_field == field) return &value;
  }
  return nullptr;
}

Error event_field_error(const EventRecord& record, std::string_view field,
                        std::string_view what) {
  return invalid("event \"{}\": field \"{}\" is {}", record.name, field, what);
}

}  // namespace holdfast
