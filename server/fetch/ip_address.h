// IpAddress is an IPv4 or IPv6 address, and IsPublicAddress decides which addresses a URL of a caller may lead to. Pure
// functions.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

struct IpAddress {
  bool is_v6 = false;
  std::array<uint8_t, 16> bytes = {};  // in network order; of IPv4 the first 4

  bool operator==(const IpAddress&) const = default;
};

// Parses "192.0.2.1" or "2001:db8::1" in the form of inet_pton: four decimal numbers, no zone, no brackets.
std::optional<IpAddress> ParseIpAddress(absl::string_view text);

// Nullopt for an address of another family.
std::optional<IpAddress> IpAddressOf(const sockaddr& address);

std::string IpAddressText(const IpAddress& address);

// Whether the address is one of the public Internet. Of IPv4 every block of the IANA's registry of special purposes is
// refused. Of IPv6 only global unicast (2000::/3) is accepted, and of it no block that stands for an IPv4 address
// (6to4, Teredo, ISATAP) and none of a special purpose; so mapped, compatible, NAT64, link-local, site-local, unique
// local, multicast and loopback addresses are refused.
bool IsPublicAddress(const IpAddress& address);

bool IsLoopback(const IpAddress& address);

}  // namespace tessera::server
