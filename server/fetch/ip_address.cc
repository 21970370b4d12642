#include "server/fetch/ip_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace tessera::server {
namespace {

// A block of addresses: the first `bits` bits of `bytes`.
struct AddressBlock {
  std::array<uint8_t, 6> bytes;
  int bits;
};

// The registry of special purposes of IPv4 (RFC 6890 and its successors), multicast and reserved addresses, and the
// address at which Azure serves its virtual machines.
constexpr AddressBlock kSpecialV4[] = {
    {{0}, 8},              // this network
    {{10}, 8},             // private
    {{100, 64}, 10},       // carrier-grade NAT
    {{127}, 8},            // loopback
    {{169, 254}, 16},      // link-local, with the metadata services of clouds
    {{172, 16}, 12},       // private
    {{192, 0, 0}, 24},     // protocol assignments
    {{192, 0, 2}, 24},     // documentation
    {{192, 31, 196}, 24},  // AS112
    {{192, 52, 193}, 24},  // AMT
    {{192, 88, 99}, 24},   // relays of 6to4
    {{192, 168}, 16},      // private
    {{192, 175, 48}, 24},  // AS112
    {{198, 18}, 15},       // benchmarks
    {{198, 51, 100}, 24},  // documentation
    {{203, 0, 113}, 24},   // documentation
    {{224}, 4},            // multicast
    {{240}, 4},            // reserved, broadcast
    {{168, 63, 129, 16}, 32},
};

// Blocks within global unicast.
constexpr AddressBlock kSpecialV6[] = {
    {{0x20, 0x01, 0x00}, 23},                    // protocol assignments: Teredo, benchmarks, ORCHID
    {{0x20, 0x01, 0x0d, 0xb8}, 32},              // documentation
    {{0x20, 0x02}, 16},                          // 6to4
    {{0x26, 0x20, 0x00, 0x4f, 0x80, 0x00}, 48},  // AS112
    {{0x3f, 0xff, 0x00}, 20},                    // documentation
};

bool IsIn(const IpAddress& address, const AddressBlock& block) {
  for (int bit = 0; bit < block.bits; bit += 8) {
    const int left = std::min(8, block.bits - bit);
    const auto mask = static_cast<uint8_t>(0xff << (8 - left));
    if ((address.bytes[bit / 8] & mask) != (block.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

// An interface identifier of ISATAP (RFC 5214) has an IPv4 address in its last four bytes.
bool IsIsatap(const IpAddress& address) {
  return (address.bytes[8] & 0xfd) == 0 && address.bytes[9] == 0 && address.bytes[10] == 0x5e &&
         address.bytes[11] == 0xfe;
}

}  // namespace

std::optional<IpAddress> ParseIpAddress(absl::string_view text) {
  IpAddress address;
  const std::string copy(text);
  if (copy.find('\0') != std::string::npos) return std::nullopt;
  if (inet_pton(AF_INET, copy.c_str(), address.bytes.data()) == 1) return address;
  address = {.is_v6 = true};
  if (inet_pton(AF_INET6, copy.c_str(), address.bytes.data()) == 1) return address;
  return std::nullopt;
}

std::optional<IpAddress> IpAddressOf(const sockaddr& address) {
  IpAddress found;
  if (address.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    std::memcpy(found.bytes.data(), &v4.sin_addr, 4);
    return found;
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof(v6));
  found.is_v6 = true;
  std::memcpy(found.bytes.data(), &v6.sin6_addr, 16);
  return found;
}

std::string IpAddressText(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes.data(), text, sizeof(text));
  return text;
}

bool IsPublicAddress(const IpAddress& address) {
  const auto is_in = [&](const AddressBlock& block) { return IsIn(address, block); };
  if (!address.is_v6) return std::ranges::none_of(kSpecialV4, is_in);
  return IsIn(address, {{0x20}, 3}) && !IsIsatap(address) && std::ranges::none_of(kSpecialV6, is_in);
}

bool IsLoopback(const IpAddress& address) {
  return address.is_v6 ? address == *ParseIpAddress("::1") : address.bytes[0] == 127;
}

}  // namespace tessera::server
