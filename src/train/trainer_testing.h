// What tests of training share.
#pragma once

#include <gtest/gtest.h>

#include "train/trainer.h"

namespace tensorcache::train {

inline void Steps(Trainer& trainer, int count) {
  for (int i = 0; i < count; ++i) {
    const auto metrics = trainer.Step(false);
    ASSERT_TRUE(metrics.ok()) << metrics.status().message();
  }
}

// To the last bit.
inline void ExpectSameParameters(const Trainer& actual, const Trainer& expected) {
  const auto a = AllParameters(actual.model().parameters()), b = AllParameters(expected.model().parameters());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < b.size(); ++i) EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << b[i].name;
}

}  // namespace tensorcache::train
