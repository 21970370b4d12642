#include "models/loading/freed_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/machine/machine_memory.h"
#include "models/loading/weight_memory.h"

namespace tessera::models {
namespace {

constexpr int64_t kMiB = 1 << 20;

int64_t OwnMemory() { return base::ReadProcessMemory({base::ProcessFamily().front()}); }

// Uses and frees so much, with something small after it that stays.
std::unique_ptr<char[]> Use(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  void* const large = std::malloc(static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(large)[at] = 1;
  auto small = std::make_unique<char[]>(100);
  std::free(large);
  return small;
}

TEST(FreedMemoryTest, IsKeptUntilItIsReleased) {
  KeepFreedMemory();
  FreedMemory freed;
  const int64_t before = OwnMemory();
  for (int i = 0; i < 2; ++i) {
    const std::unique_ptr<char[]> small = Use(200 * kMiB);
    EXPECT_GT(OwnMemory(), before + 180 * kMiB);
    freed.Release();
    EXPECT_LT(OwnMemory(), before + 20 * kMiB);
  }
}

TEST(FreedMemoryTest, StaysWhereItIsLittle) {
  KeepFreedMemory();
  FreedMemory freed;
  const std::unique_ptr<char[]> large = Use(200 * kMiB);
  freed.Release();
  const int64_t before = OwnMemory();
  const std::unique_ptr<char[]> small = Use(10 * kMiB);
  freed.Release();
  EXPECT_GT(OwnMemory(), before + 8 * kMiB) << "for the next image";
}

}  // namespace
}  // namespace tessera::models
