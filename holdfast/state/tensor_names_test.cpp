#include "holdfast/state/tensor_names.h"

#include <algorithm>
#include <vector>

#include "holdfast/base/testing.h"

namespace holdfast::tensor_names_test {
namespace {

TEST(TensorNamesTest, NamesAreInOrderOfTheirPartsWithNumbersAsNumbers) {
  const std::vector<std::string> ordered{
      "",          "a",          "a.b",         "a/b.c",          "a.c",
      "a2",        "a10",        "a10.x",       "ab",             "layer.2.weight",
      "layer/2/x", "layer.10.b", "layer.010.c", "layer_2",        "layer_10",
      "v007",      "v7",         "v7.a",        "w18446744073709551616",
      "w18446744073709551617"};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(NameOrder()(ordered[i], ordered[j]), i < j)
          << ordered[i] << " and " << ordered[j];
    }
  }
}

TEST(TensorNamesTest, WhatTensorFlowPutsBehindANameIsNoPartOfIt) {
  EXPECT_EQ(layer_of("model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"), "model/dense");
  EXPECT_EQ(layer_of("dense/kernel:0"), "dense");
  const Tensor mean{.name = "bn/moving_mean:0", .shape = Shape{4}};
  EXPECT_EQ(role_of(mean), Role::kBuffer);
}

}  // namespace
}  // namespace holdfast::tensor_names_test
