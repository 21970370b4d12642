#include "base/fields/field_error.h"

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
  const absl::Status plain = absl::InternalError("steps is 9");
  EXPECT_EQ(FieldOf(WithField(plain, "steps")), "steps");
  EXPECT_EQ(WithField(plain, "steps").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(FieldOf(WithField(plain, "")), "");
  EXPECT_EQ(FieldOf(WithField(plain, "size")), "");
  EXPECT_EQ(FieldOf(WithField(plain, "steps is 9 and more")), "");
}

}  // namespace
}  // namespace tessera::base
