// How far two predictions or latents are apart, and how far they may be.
#pragma once

#include <string>

namespace tessera::control {
enum class Dtype;
struct LatentValues;
}  // namespace tessera::control

namespace tessera::server {

// Returns the largest allowed RelativeDistance between the model's prediction for an image in a batch and its
// prediction for that image alone. It is zero on the CPU, where the operators promise equal bits (kernels/ops.h). On a
// device, whose libraries do not promise that, it is what rounding in another order may change.
double BatchBound(control::Dtype dtype, const std::string& device);

// max |a − b| / max |b|; NaN if any value is NaN or if the shapes differ.
double RelativeError(const control::LatentValues& a, const control::LatentValues& b);

// ‖a − b‖ / ‖b‖; NaN as in RelativeError.
double RelativeDistance(const control::LatentValues& a, const control::LatentValues& b);

}  // namespace tessera::server
