#include "core/array_view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tensorcache {
namespace {

std::vector<int> Count(int n) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(ArrayView, ContiguousIsRowMajor) {
  auto values = Count(24);
  const ArrayView<int, 3> view(values.data(), {2, 3, 4});
  EXPECT_EQ(view.elements(), 24);
  EXPECT_EQ(view.size(1), 3);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.At(1, 2, 3), 23);
  EXPECT_EQ(*view.Row(1, 0), 12);
  EXPECT_TRUE(view.IsContiguous());
  view.At(0, 0, 1) = 7;
  EXPECT_EQ(values[1], 7);
}

TEST(ArrayView, StridesMayTransposePadAndBroadcast) {
  auto values = Count(24);
  const ArrayView<const int, 2> transposed(values.data(), {4, 6}, {1, 4});
  EXPECT_EQ(transposed.At(3, 5), 23);
  EXPECT_FALSE(transposed.IsContiguous());
  const ArrayView<const int, 2> padded(values.data(), {4, 5}, {6, 1});
  EXPECT_EQ(padded.Row(3)[4], 22);
  EXPECT_FALSE(padded.IsContiguous());
  const ArrayView<const int, 2> broadcast(values.data() + 9, {3, 1}, {0, 1});
  EXPECT_EQ(broadcast.At(2, 0), 9);
}

TEST(ArrayView, ContiguityIgnoresDimensionsOfOneAndEmptyArrays) {
  auto values = Count(4);
  EXPECT_TRUE((ArrayView<int, 2>(values.data(), {1, 4}, {99, 1}).IsContiguous()));
  EXPECT_TRUE((ArrayView<int, 2>(values.data(), {0, 4}, {99, 7}).IsContiguous()));
}

TEST(ArrayView, ConvertsToReadOnly) {
  auto values = Count(3);
  const ArrayView<const int, 1> view = ArrayView<int, 1>(values.data(), {3});
  EXPECT_EQ(view.At(2), 2);
  EXPECT_EQ(view.Row(), values.data());
}

TEST(ArrayViewDeathTest, ChecksIndices) {
  auto values = Count(6);
  const ArrayView<int, 2> view(values.data(), {2, 3});
  EXPECT_DEATH(view.At(2, 0), "CHECK failed");
  EXPECT_DEATH(view.At(0, -1), "CHECK failed");
  EXPECT_DEATH(view.Row(2), "CHECK failed");
  EXPECT_DEATH(view.size(2), "CHECK failed");
  const ArrayView<int, 2> transposed(values.data(), {3, 2}, {1, 3});
  EXPECT_DEATH(transposed.Row(0), "CHECK failed");
}

}  // namespace
}  // namespace tensorcache
