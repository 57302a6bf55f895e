#include "holdfast/roles/roles.h"

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/tensorflow/object_graph.h"
#include "holdfast/tensorflow/wire_format.h"

namespace holdfast::roles_test {
namespace {

using bundle::append_bytes;
using bundle::append_number;

std::string child(size_t node, std::string_view name) {
  std::string message, field;
  append_number(message, 1, node);
  append_bytes(message, 2, name);
  append_bytes(field, 1, message);
  return field;
}

std::string variable(std::string_view key, std::string_view full_name = "") {
  std::string message, field;
  append_bytes(message, 1, "VARIABLE_VALUE");
  append_bytes(message, 2, full_name);
  append_bytes(message, 3, key);
  append_bytes(field, 2, message);
  return field;
}

std::string slot(size_t original, size_t node) {
  std::string message, field;
  append_number(message, 1, original);
  append_number(message, 3, node);
  append_bytes(field, 3, message);
  return field;
}

Object objects_of(const std::vector<std::string>& nodes) {
  std::string graph;
  for (const std::string& node : nodes) append_bytes(graph, 1, node);
  const ByteView bytes = bytes_of(graph);
  Object::Dict dict;
  dict.items.emplace_back(Object(std::string(kObjectGraphKey)),
                          Object(Bytes(bytes.begin(), bytes.end())));
  return Object(std::move(dict));
}

Contents contents_of(const std::vector<std::string>& names) {
  std::vector<Tensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({.name = name, .dtype = Dtype::kF32, .shape = Shape{2}});
  }
  return tests::contents_with(tensors,
                              std::vector<tests::Memory>(names.size(), tests::Memory(8)));
}

TEST(RolesTest, SlotsOfTensorFlowTellWhatIsTrained) {
  Contents contents = contents_of({"optimizer/a", "net/b", "x/c", "y/d"});
  contents.objects = objects_of(
      {child(1, "optimizer") + child(2, "net"), child(3, "a") + slot(3, 4),
       child(3, "w") + child(5, "stat"), variable("optimizer/a", "net/w"),
       variable("x/c"), variable("net/b", "net/stat")});
  const Roles roles = find_roles(contents, false);
  EXPECT_EQ(roles[0].role, Role::kParameter);
  EXPECT_EQ(roles[0].layer, "net");
  EXPECT_EQ(roles[1].role, Role::kBuffer) << "beside a trained one, and not trained";
  EXPECT_EQ(roles[2].role, Role::kSlot);
  EXPECT_EQ(roles[2].of, "optimizer/a");
  EXPECT_EQ(roles[2].layer, "net");
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(roles[i].origin, RoleOrigin::kFile);
  EXPECT_EQ(roles[3].origin, RoleOrigin::kGuessed) << "the graph does not have it";
}

TEST(RolesTest, TwoLayersOfOneNameAreCalledByTheirPaths) {
  Contents contents = contents_of({"a/w", "b/w"});
  contents.objects =
      objects_of({child(1, "a") + child(2, "b"), child(3, "w"), child(4, "w"),
                  variable("a/w", "dense/kernel"), variable("b/w", "dense/kernel")});
  const Roles roles = find_roles(contents, false);
  EXPECT_EQ(layers_of(roles), (std::vector<std::string>{"a", "b"}));
}

TEST(RolesTest, AGraphThatIsWrongIsNoGraph) {
  Contents contents = contents_of({"w"});
  for (const auto& nodes : std::vector<std::vector<std::string>>{
           {child(7, "w"), variable("w")},
           {slot(9, 1), variable("w")},
           {std::string("\x0a\xff\xff", 3)},
           {}}) {
    contents.objects = objects_of(nodes);
    EXPECT_EQ(find_roles(contents, false)[0].origin, RoleOrigin::kGuessed);
  }
}

TEST(RolesTest, ALongCircleOfObjectsEndsSoon) {
  constexpr size_t kNodes = 20'000;
  std::vector<std::string> nodes;
  for (size_t i = 0; i < kNodes; ++i) {
    nodes.push_back(child((i + 1) % kNodes, "a_long_name_of_an_object") +
                    variable(fmt::format("v{}", i)));
  }
  Contents contents = contents_of({"v1", "v99", "v19999"});
  contents.objects = objects_of(nodes);
  const Roles roles = find_roles(contents, false);
  EXPECT_EQ(roles[0].layer, "");
  EXPECT_TRUE(roles[1].layer.starts_with("a_long_name_of_an_object/"));
  EXPECT_EQ(roles[2].layer, "") << "it lies too deep to be named";
}

TEST(RolesTest, AStepRecordsTheRolesOfItsModelAndNotThoseOfOtherObjects) {
  std::vector<Tensor> tensors{
      {.name = "model.steps", .shape = Shape{1}},
      {.name = "ema.step", .shape = Shape{1}},
      {.name = "gen.w", .shape = Shape{1}},
      {.name = "o.gen.w.m", .shape = Shape{1}, .role = Role::kSlot, .of = "gen.w"}};
  const Contents contents = tests::contents_with(
      tensors, std::vector<tests::Memory>(tensors.size(), tests::Memory(4)));
  const Roles roles = find_roles(contents, true);
  EXPECT_EQ(roles[0].role, Role::kParameter);
  EXPECT_EQ(roles[0].origin, RoleOrigin::kFile);
  EXPECT_EQ(roles[1].role, Role::kCounter);
  EXPECT_EQ(roles[1].origin, RoleOrigin::kGuessed);
  EXPECT_EQ(roles[2].origin, RoleOrigin::kFile);
  EXPECT_EQ(roles[3].layer, "gen");
}

}  // namespace
}  // namespace holdfast::roles_test
