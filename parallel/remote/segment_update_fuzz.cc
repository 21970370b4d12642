// Applies arbitrary bytes as a batch of another host's updates. What is accepted leaves a segment with valid slots; the
// rest is rejected with a bounded error.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "parallel/remote/segment_mirror.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::parallel::HostSegment;
  const std::shared_ptr<HostSegment> segment = *HostSegment::CreateInHeap(
      {.ranks = 3, .groups = {{.name = "world", .ranks = {0, 1, 2}}}, .slot_bytes = 4096, .slots = 2});
  tessera::parallel::SegmentMirror mirror(segment, {1, 2, 0}, 0);
  const auto others = mirror.Route(1, std::string_view(reinterpret_cast<const char*>(data), size));
  if (!others.ok() && others.status().message().size() > 200) std::abort();
  for (int from = 0; from < 2; ++from) {
    const auto& channel = segment->ChannelOf(0, from, 2);
    if (channel.written.load() - channel.read.load() > 2) std::abort();
  }
  return 0;
}
