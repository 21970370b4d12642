#include "tests/support/fake_cuda/module_images.h"

#include <cstdint>
#include <cstring>

namespace tessera::fake_cuda {
namespace {

struct Wrapper {
  uint32_t magic, version;
  const char* data;
};

struct FatBinaryHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // of all images
};

struct ImageHeader {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t unused[3];
  uint32_t architecture;
  uint64_t more;
  uint64_t flags;
};

constexpr uint32_t kFatBinary = 0xBA55ED50;
constexpr uint16_t kPtx = 1;
constexpr uint64_t kThisArchitectureOnly = 1 << 20;  // sm_90a
constexpr uint64_t kFamilyOnly = 1 << 21;            // sm_100f

template <class Header>
Header ReadHeader(const char* at) {
  Header header;
  std::memcpy(&header, at, sizeof(header));
  return header;
}

bool Runs(const ImageHeader& image, uint32_t card) {
  if ((image.flags & kThisArchitectureOnly) != 0) return image.architecture == card;
  const bool any_later = image.kind == kPtx && (image.flags & kFamilyOnly) == 0;
  return image.architecture <= card && (any_later || image.architecture / 10 == card / 10);
}

}  // namespace

ModuleImages::ModuleImages(const void* wrapper) : data_(static_cast<const Wrapper*>(wrapper)->data) {}

bool ModuleImages::Serve(int architecture) const {
  const auto header = ReadHeader<FatBinaryHeader>(data_);
  if (header.magic != kFatBinary) return false;
  const char* const end = data_ + header.header_bytes + header.bytes;
  for (const char* at = data_ + header.header_bytes; at < end;) {
    const auto image = ReadHeader<ImageHeader>(at);
    if (Runs(image, static_cast<uint32_t>(architecture))) return true;
    at += image.header_bytes + image.bytes;
  }
  return false;
}

}  // namespace tessera::fake_cuda
