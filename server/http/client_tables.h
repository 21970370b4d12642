// The fields that clients of other image servers send, with what each means in this API.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "server/api/foreign_client.h"

namespace tessera::server {

// What the value of a client's field is.
enum class Meaning : uint8_t {
  kField,     // the same as `field`
  kSide,      // `field` of the size, in pixels
  kAdapter,   // the name of one adapter
  kScale,     // the scale of that adapter
  kAdapters,  // a list of objects with the name and the scale of an adapter
  kClipSkip,  // counts the last layer: 1 skips none, and less is the model's default
  kPicture,   // a picture: `field` in bodies that have pictures, else only nothing may stand for it
  kIgnored,
};

// A field in an object is named OUTER.INNER. `field` is one of this API's, or a side of its size.
struct ClientField {
  const char* name;
  Meaning meaning;
  const char* field = "";
};

struct ClientTable {
  absl::Span<const ClientField> fields;
  absl::Span<const char* const> containers;  // objects whose members count as members of the body
};

ClientTable ClientTableOf(ForeignClient client);

}  // namespace tessera::server
