#include "base/files/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace tessera::base {
namespace {

// The examples of FIPS 180-2.
TEST(Sha256Test, ThePublishedExamplesAgree) {
  Sha256 abc;
  abc.Update("abc");
  EXPECT_EQ(abc.Finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 two_blocks;
  two_blocks.Update("abcdbcdecdefdefgefghfghighijhijk");
  two_blocks.Update("ijkljklmklmnlmnomnopnopq");
  EXPECT_EQ(two_blocks.Finish(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, PartsThatJoinToTheSameBytesDiffer) {
  Sha256 first, second;
  first.UpdatePart("ab");
  first.UpdatePart("c");
  second.UpdatePart("a");
  second.UpdatePart("bc");
  EXPECT_NE(first.Finish(), second.Finish());
}

// RFC 4231, test case 2.
TEST(Sha256Test, TheCodeWithAKeyIsThatOfItsDefinition) {
  EXPECT_EQ(absl::BytesToHexString(HmacSha256Of("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace tessera::base
