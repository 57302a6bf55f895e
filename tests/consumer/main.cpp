// Calls functions of an installed Holdfast through the header for the whole library.
#include <holdfast/holdfast.h>

#include <cstdio>

int main() {
  const holdfast::Box left{{0, 4}, {0, 6}};
  const auto common = holdfast::intersect(left, holdfast::Box{{2, 8}, {3, 5}});
  const auto json = holdfast::parse_json(R"({"step": 400})", "consumer");
  if (!common || !json.ok()) return 1;
  std::printf("%s at step %d\n", holdfast::to_string(*common).c_str(),
              json->at("step").get<int>());
  return 0;
}
