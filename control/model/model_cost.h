// ModelCost holds what computing with a model costs, as coefficients of an image's size and a prompt's length: tokens,
// floating-point operations and live values. The model's family fills it in from the configuration, and the worker
// sends it as a part of the model's description. Scheduler, planner and the worker's own memory plan all predict with
// the functions here. Pure; free of LibTorch.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "parallel/plan/layout_bytes.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/stage_balance.h"

namespace tessera::control {

enum class DeviceKind : uint8_t;
enum class Dtype;
enum class ReferenceFit : uint8_t;  // control/pictures/picture_input.h
struct GroupShare;                  // control/model/group_share.h
struct JobParameters;

// Live values per token inside a block, as a multiple of the model's width: residual, normed, q, k, v, the MLP's hidden
// layer and their inputs. FLUX.2 projects q, k, v and both halves of a gated MLP of three widths at once.
inline constexpr int64_t kLiveWidths = 16, kLiveWidthsOfFlux2 = 22;

// A block's modulation at one step, as a multiple of the width: shift, scale and gate of attention and MLP.
inline constexpr int64_t kModulationWidths = 6;

inline constexpr int32_t kMaxImageSide = 1 << 16;  // pixels
inline constexpr int32_t kMaxTokens = 1 << 16;     // of a prompt

struct ImageSize {
  int64_t height = 0, width = 0;  // pixels
  bool operator==(const ImageSize&) const = default;
};

// The sizes that a model was trained on, which resolution binning selects from.
struct StandardSize {
  double ratio = 1;  // of the sides, as the model's authors round it
  int32_t height = 1, width = 1;
  bool operator==(const StandardSize&) const = default;
};
struct StandardSizes {
  bool ratio_is_width_by_height = false;  // otherwise height by width
  std::vector<StandardSize> sizes;
  bool operator==(const StandardSizes&) const = default;
};

// Returns the size whose ratio is nearest to that of the requested size; among sizes of one ratio, the one of the
// nearest area. The first if several are equally near. The requested size if there are no others.
ImageSize NearestSize(const StandardSizes& standard, ImageSize requested);

struct ModelCost {
  int32_t token_side = 1;         // side of an image token in pixels
  int32_t text_tokens = 0;        // of a prompt of the default length, as the blocks see it
  int32_t fixed_text_tokens = 0;  // those of them that do not depend on the job's max_sequence_length
  bool joint_text = false;        // text takes part in the image's attention and is divided over ranks like it
  // How the pictures of a job are brought to size, whose tokens go with those of its text; kNone: there are none.
  ReferenceFit references = {};
  bool guidance_is_input = false;  // the guidance scale adds no branch; a true CFG scale does
  double guided_above = 1;         // the guidance scale above which it adds a branch
  StandardSizes sizes;             // empty if the model has none
  parallel::TokenFlops flops;      // of all blocks, for one row of a step
  int32_t blocks = 1;
  double values_per_token = 0;        // live activations of a token in a block
  double values_per_block = 0;        // modulations of a block that a row keeps for the duration of a job
  double encode_flops_per_token = 0;  // text encoders
  double decode_flops_per_pixel = 0;
  double decode_values_per_pixel = 0;  // live activations
  bool operator==(const ModelCost&) const = default;
};

constexpr auto FieldsOf(const StandardSize*) {
  using base::Field, base::Integer;
  using S = StandardSize;
  return std::tuple(Field("ratio", &S::ratio, base::Number{1e-6, 1e6}),
                    Field("height", &S::height, Integer{1, kMaxImageSide}),
                    Field("width", &S::width, Integer{1, kMaxImageSide}));
}

constexpr auto FieldsOf(const StandardSizes*) {
  using base::Field;
  using S = StandardSizes;
  return std::tuple(Field("ratio_is_width_by_height", &S::ratio_is_width_by_height),
                    Field("sizes", &S::sizes, base::List<base::Nested>{.most = 1 << 10}));
}

// Fills in what a step of a transformer of these blocks costs, from the fields about tokens. Returns the FLOPs of each
// block for an image of this size with text_tokens. `mlp_ratio` is that of BlockCost.
std::vector<double> SetTransformer(const parallel::ExchangeModel& transformer, double mlp_ratio, ImageSize size,
                                   ModelCost& cost);

int64_t ImageTokens(const ModelCost& cost, ImageSize size);

// Whether classifier-free guidance adds a branch to the job.
bool IsGuided(const ModelCost& cost, const JobParameters& job);

// One image as the transformer and the decoder see it.
struct ImageWork {
  ImageSize size;           // as generated: after resolution binning
  int64_t text_tokens = 0;  // of one row
  int64_t rows = 1;         // guidance branches
};
ImageWork WorkOf(const ModelCost& cost, const JobParameters& job);

// Returns the sizes at which the pictures of a job are encoded, in their order, for an image of size `image`.
std::vector<ImageSize> EncodedSizes(const ModelCost& cost, const JobParameters& job, ImageSize image);

GroupShare ShareOf(const parallel::MeshShape& mesh, DeviceKind device, Dtype dtype);

double EncodeFlops(const ModelCost& cost, const ImageWork& work);  // of the prompt
double StepFlops(const ModelCost& cost, const ImageWork& work);
double DecodeFlops(const ModelCost& cost, const ImageWork& work);

// The activations of a step of this many images of this size on the rank that needs most, in bytes.
double ActivationBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share);

// The memory of a step on the rank that needs most: activations and modulations. That of decoding one image.
double StepBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share);
double DecodeBytes(const ModelCost& cost, const ImageWork& work, const GroupShare& share);

// The largest memory in bytes, excluding weights, that any rank needs for a batch of `images` of this size: activations
// of a step and modulations, or the decoder's activations, whichever is more.
double PeakBytes(const ModelCost& cost, const ImageWork& work, int64_t images, const GroupShare& share);

}  // namespace tessera::control
