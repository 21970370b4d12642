#include "base/field_error.h"

#include <gtest/gtest.h>

namespace tessera::base {
namespace {

TEST(FieldErrorTest, SaysWhichFieldItIsAbout) {
  const absl::Status error = ErrorOfField("steps", " is 9; take fewer steps");
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.message(), "steps is 9; take fewer steps");
  EXPECT_EQ(FieldOf(error), "steps");
  EXPECT_EQ(FieldOf(absl::InvalidArgumentError("steps is 9; take fewer steps")), "");
  EXPECT_EQ(FieldOf(absl::OkStatus()), "");
}

TEST(FieldErrorTest, WhatAPeerSaysIsAboutAFieldOnlyIfItsMessageBeginsWithIt) {
  const absl::Status told = absl::InternalError("steps is 9");
  EXPECT_EQ(FieldOf(WithField(told, "steps")), "steps");
  EXPECT_EQ(WithField(told, "steps").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(FieldOf(WithField(told, "")), "");
  EXPECT_EQ(FieldOf(WithField(told, "size")), "");
  EXPECT_EQ(FieldOf(WithField(told, "steps is 9 and more")), "");
}

}  // namespace
}  // namespace tessera::base
