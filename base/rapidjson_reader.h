// RapidJSON's reader, whose stack asks for room by comparing distances. RapidJSON 1.1 adds an offset to the null
// pointer of a stack that is still empty, which is undefined, and which ends a program under UBSan; later versions
// compare distances too.
#pragma once

#include <rapidjson/reader.h>

#include <cstddef>

namespace tessera::base {

// The stack of this allocator is the one that is put right.
class JsonStackAllocator final : public rapidjson::CrtAllocator {};

using JsonReader = rapidjson::GenericReader<rapidjson::UTF8<>, rapidjson::UTF8<>, JsonStackAllocator>;

}  // namespace tessera::base

template <>
template <typename T>
inline void rapidjson::internal::Stack<tessera::base::JsonStackAllocator>::Reserve(std::size_t count) {
  if (static_cast<std::ptrdiff_t>(sizeof(T) * count) > stackEnd_ - stackTop_) Expand<T>(count);
}
