#include "holdfast/tensorflow/object_graph.h"

#include <algorithm>

#include "holdfast/tensorflow/wire_format.h"

namespace holdfast {
namespace {

using bundle::WireField;
using bundle::WireReader;
using bundle::WireType;

// The text and the numbers of a message, by the numbers of its fields. All messages in
// a node of the graph have at most 3 fields, and none of them twice.
struct SmallMessage {
  std::string_view texts[4];
  uint64_t numbers[4]{};
};

std::optional<SmallMessage> read_small(ByteView message) {
  SmallMessage read;
  WireReader reader(message);
  while (!reader.done()) {
    const auto field = reader.next();
    if (!field) return std::nullopt;
    if (field->number > 3) continue;
    if (field->type == WireType::kBytes) {
      read.texts[field->number] = text_of(field->bytes);
    } else {
      read.numbers[field->number] = field->value;
    }
  }
  return read;
}

void add_attribute(const SmallMessage& read, TrackedObject& object) {
  if (read.texts[1] != "VARIABLE_VALUE") return;
  object.full_name = read.texts[2];
  object.key = read.texts[3];
}

std::optional<TrackedObject> read_object(ByteView message) {
  TrackedObject object;
  WireReader reader(message);
  while (!reader.done()) {
    const auto field = reader.next();
    if (!field) return std::nullopt;
    if (field->type != WireType::kBytes || field->number > 3) continue;
    const auto read = read_small(field->bytes);
    if (!read) return std::nullopt;
    if (field->number == 1) {
      object.children.push_back({std::string(read->texts[2]), read->numbers[1]});
    } else if (field->number == 2) {
      add_attribute(*read, object);
    } else if (field->number == 3) {
      object.slots.push_back({read->numbers[1], read->numbers[3]});
    }
  }
  return object;
}

bool names_known_nodes(const ObjectGraph& graph) {
  const size_t count = graph.nodes.size();
  return std::ranges::all_of(graph.nodes, [&](const TrackedObject& object) {
    return std::ranges::all_of(object.children,
                               [&](const auto& child) { return child.node < count; }) &&
           std::ranges::all_of(object.slots, [&](const auto& slot) {
             return slot.original < count && slot.slot < count;
           });
  });
}

}  // namespace

std::optional<ObjectGraph> parse_object_graph(ByteView message) {
  ObjectGraph graph;
  WireReader reader(message);
  while (!reader.done()) {
    const auto field = reader.next();
    if (!field) return std::nullopt;
    if (field->number != 1 || field->type != WireType::kBytes) continue;
    auto object = read_object(field->bytes);
    if (!object) return std::nullopt;
    graph.nodes.push_back(*std::move(object));
  }
  if (graph.nodes.empty() || !names_known_nodes(graph)) return std::nullopt;
  return graph;
}

}  // namespace holdfast
