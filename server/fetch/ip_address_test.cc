#include "server/fetch/ip_address.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

IpAddress Address(const std::string& text) {
  const std::optional<IpAddress> address = ParseIpAddress(text);
  EXPECT_TRUE(address.has_value()) << text;
  return address.value_or(IpAddress());
}

TEST(IpAddressTest, IsPublicBetweenAndBeyondTheSpecialBlocks) {
  for (const char* text : {"1.1.1.1",        "8.8.8.8",         "9.255.255.255",   "11.0.0.0",
                           "100.63.255.255", "100.128.0.0",     "126.255.255.255", "128.0.0.0",
                           "168.63.129.15",  "169.253.255.255", "169.255.0.0",     "172.15.255.255",
                           "172.32.0.0",     "192.0.1.0",       "192.0.3.0",       "192.167.255.255",
                           "192.169.0.0",    "198.17.255.255",  "198.20.0.0",      "198.51.99.255",
                           "203.0.114.0",    "223.255.255.255", "2001:200::1",     "2001:4860:4860::8888",
                           "2003::1",        "2606:4700::1111", "3ffe::1"}) {
    EXPECT_TRUE(IsPublicAddress(Address(text))) << text;
  }
}

TEST(IpAddressTest, IsNotPublicInAnySpecialBlockOfIpv4) {
  for (const char* text :
       {"0.0.0.0",         "0.255.255.255",  "10.0.0.0",        "10.255.255.255",  "100.64.0.0",      "100.127.255.255",
        "100.100.100.200", "127.0.0.1",      "127.255.255.255", "168.63.129.16",   "169.254.0.0",     "169.254.169.254",
        "172.16.0.0",      "172.31.255.255", "192.0.0.0",       "192.0.0.192",     "192.0.2.1",       "192.31.196.1",
        "192.52.193.1",    "192.88.99.1",    "192.168.0.0",     "192.168.255.255", "192.175.48.1",    "198.18.0.0",
        "198.19.255.255",  "198.51.100.1",   "203.0.113.1",     "224.0.0.1",       "239.255.255.255", "240.0.0.0",
        "255.255.255.255"}) {
    EXPECT_FALSE(IsPublicAddress(Address(text))) << text;
  }
}

TEST(IpAddressTest, IsNotPublicInAFormOfIpv6ThatLeadsElsewhere) {
  for (const char* text : {"::",                         // unspecified
                           "::1",                        // loopback
                           "::ffff:127.0.0.1",           // mapped
                           "::ffff:8.8.8.8",             // mapped, too
                           "::127.0.0.1",                // compatible
                           "::ffff:0:127.0.0.1",         // translated
                           "64:ff9b::127.0.0.1",         // NAT64
                           "64:ff9b::8.8.8.8",           // NAT64, too
                           "64:ff9b:1::10.0.0.1",        // NAT64 of a local network
                           "100::1",                     // discard
                           "2001::1",                    // Teredo
                           "2001:10::1",                 // ORCHID
                           "2001:1ff::1",                // protocol assignments
                           "2001:db8::1",                // documentation
                           "2002:7f00:1::1",             // 6to4 of 127.0.0.1
                           "2620:4f:8000::1",            // AS112
                           "3fff::1",                    // documentation
                           "2606:4700::5efe:7f00:1",     // ISATAP
                           "2606:4700::200:5efe:a00:1",  // ISATAP
                           "4000::1",
                           "5f00::1",  // not assigned
                           "fc00::1",
                           "fd00:ec2::254",  // unique local
                           "fe80::1",
                           "febf::1",     // link-local
                           "fec0::1",     // site-local
                           "ff02::1"}) {  // multicast
    EXPECT_FALSE(IsPublicAddress(Address(text))) << text;
  }
}

TEST(IpAddressTest, IsReadInOneFormAlone) {
  for (const char* text :
       {"", "127.1", "0x7f.0.0.1", "0177.0.0.1", "2130706433", "127.0.0.1.", "[::1]", "::1%lo", "1.2.3"}) {
    EXPECT_FALSE(ParseIpAddress(text).has_value()) << text;
  }
  EXPECT_FALSE(ParseIpAddress(std::string("::1\0x", 5)).has_value());
  EXPECT_EQ(IpAddressText(Address("2001:DB8:0::1")), "2001:db8::1");
  EXPECT_EQ(IpAddressText(Address("192.0.2.7")), "192.0.2.7");
}

TEST(IpAddressTest, OfLoopbackIsOneOfThatBlock) {
  EXPECT_TRUE(IsLoopback(Address("127.3.2.1")));
  EXPECT_TRUE(IsLoopback(Address("::1")));
  EXPECT_FALSE(IsLoopback(Address("128.0.0.1")));
  EXPECT_FALSE(IsLoopback(Address("::2")));
  EXPECT_FALSE(IsLoopback(Address("7f00::1")));
}

}  // namespace
}  // namespace tessera::server
