// GroupShare says how the ranks of a group divide the work of a model.
#pragma once

#include <cstdint>

namespace tessera::control {

// How a group divides the work.
struct GroupShare {
  int64_t sequence = 1;  // ranks that divide the tokens: ring × Ulysses
  int64_t tensor = 1;
  int64_t cfg = 1;
  int64_t pipe = 1;
  bool images_share_passes = true;  // then the activations of all images of a batch exist at once
  double most_band_bytes = 0;       // the decoder's temporaries apart from its activations, at most; 0: on a device
  int64_t element_bytes = 4;        // of the served dtype
};

}  // namespace tessera::control
