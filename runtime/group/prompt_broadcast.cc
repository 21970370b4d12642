#include "runtime/group/prompt_broadcast.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fields/binary_fields.h"

namespace tessera::runtime {
namespace {

// More than any prompt has. It bounds what a receiver allocates on a peer's word.
constexpr int64_t kMaxDescriptionBytes = int64_t{16} << 20;
constexpr int64_t kMaxTensorBytes = int64_t{4} << 30;
constexpr size_t kMaxDims = 8;

constexpr int kFirst = 0;

constexpr std::array kDtypes = {at::kByte, at::kChar,     at::kShort, at::kInt,  at::kLong,         at::kDouble,
                                at::kHalf, at::kBFloat16, at::kFloat, at::kBool, at::kComplexFloat, at::kComplexDouble};

// A prompt is sent as a description, followed by the tensors, each once because branches may share a row. A tensor is
// named by its place among them; kUndefined is none.
constexpr int64_t kUndefined = -1;

struct SentTensor {
  uint8_t dtype = 0;  // index in kDtypes
  std::vector<int64_t> sizes;
};

struct SentTerm {
  double weight = 0, start = 0, stop = 0, least_timestep = 0;
};

struct SentBranch {
  int64_t text = kUndefined;
  std::vector<int64_t> extras;
  std::vector<SentTerm> terms;
  std::vector<int32_t> skipped_blocks;
};

struct SentText {
  std::string text;
};

struct SentPrompt {
  uint8_t code = 0;  // of an error; with its reason, and nothing else
  std::string reason;
  std::vector<SentTensor> tensors;
  std::vector<SentBranch> branches;
  double rescale = 0, norm_limit = 0;
  int64_t kept_norm_patch = 0;
  uint64_t conditional = 0;
  int64_t prompt_tokens = 0;
  bool cached = false;
  std::vector<SentText> warnings;
};

constexpr auto FieldsOf(const SentTensor*) {
  return std::tuple(base::Field("dtype", &SentTensor::dtype, base::Integer{0, kDtypes.size() - 1}),
                    base::Field("sizes", &SentTensor::sizes, base::List<base::Integer>{.each = {0}, .most = kMaxDims}));
}
constexpr auto FieldsOf(const SentTerm*) {
  return std::tuple(base::Field("weight", &SentTerm::weight), base::Field("start", &SentTerm::start),
                    base::Field("stop", &SentTerm::stop), base::Field("least_timestep", &SentTerm::least_timestep));
}
constexpr auto FieldsOf(const SentBranch*) {
  using S = SentBranch;
  return std::tuple(base::Field("text", &S::text), base::Field("extras", &S::extras), base::Field("terms", &S::terms),
                    base::Field("skipped_blocks", &S::skipped_blocks));
}
constexpr auto FieldsOf(const SentText*) { return std::tuple(base::Field("text", &SentText::text, base::Bytes())); }
constexpr auto FieldsOf(const SentPrompt*) {
  using base::Field;
  using S = SentPrompt;
  return std::tuple(
      Field("code", &S::code, base::Integer{0, static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)}),
      Field("reason", &S::reason, base::Bytes()), Field("tensors", &S::tensors), Field("branches", &S::branches),
      Field("rescale", &S::rescale), Field("norm_limit", &S::norm_limit), Field("kept_norm_patch", &S::kept_norm_patch),
      Field("conditional", &S::conditional), Field("prompt_tokens", &S::prompt_tokens), Field("cached", &S::cached),
      Field("warnings", &S::warnings));
}

int64_t PlaceOf(const at::Tensor& tensor, std::vector<at::Tensor>& tensors) {
  if (!tensor.defined()) return kUndefined;
  const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
  const auto place = std::find_if(tensors.begin(), tensors.end(), same) - tensors.begin();
  if (place == std::ssize(tensors)) tensors.push_back(tensor);
  return place;
}

// The structured bindings here fail to compile when a prompt gets a field that is not sent.
SentPrompt DescriptionOf(const models::EncodedPrompt& prompt, std::vector<at::Tensor>& tensors) {
  const auto& [guidance, prompt_tokens, cached, warnings] = prompt;
  const auto& [branches, rescale, norm_limit, kept_norm_patch, conditional] = guidance;
  SentPrompt sent = {.rescale = rescale,
                     .norm_limit = norm_limit,
                     .kept_norm_patch = kept_norm_patch,
                     .conditional = conditional,
                     .prompt_tokens = prompt_tokens,
                     .cached = cached};
  for (const std::string& warning : warnings) sent.warnings.push_back({warning});
  for (const auto& [row, terms, skipped_blocks] : branches) {
    const auto& [text, extras] = row;
    SentBranch& branch = sent.branches.emplace_back();
    branch.text = PlaceOf(text, tensors);
    for (const at::Tensor& extra : extras) branch.extras.push_back(PlaceOf(extra, tensors));
    for (const auto& [weight, start, stop, least_timestep] : terms) {
      branch.terms.push_back({weight, start, stop, least_timestep});
    }
    branch.skipped_blocks.assign(skipped_blocks.begin(), skipped_blocks.end());
  }
  for (const at::Tensor& tensor : tensors) {
    const auto dtype = std::find(kDtypes.begin(), kDtypes.end(), tensor.scalar_type()) - kDtypes.begin();
    sent.tensors.push_back({.dtype = static_cast<uint8_t>(dtype), .sizes = tensor.sizes().vec()});
  }
  return sent;
}

// Returns nullopt if a branch names a tensor that was not sent.
std::optional<models::EncodedPrompt> PromptOf(const SentPrompt& sent, const std::vector<at::Tensor>& tensors) {
  bool ok = true;
  const auto tensor = [&](int64_t place) {
    ok = ok && place >= kUndefined && place < std::ssize(tensors);
    return ok && place != kUndefined ? tensors[static_cast<size_t>(place)] : at::Tensor();
  };
  models::EncodedPrompt prompt;
  for (const SentBranch& branch : sent.branches) {
    models::GuidanceBranch& to = prompt.guidance.branches.emplace_back();
    to.row.text = tensor(branch.text);
    for (const int64_t extra : branch.extras) to.row.extras.push_back(tensor(extra));
    for (const auto& [weight, start, stop, least_timestep] : branch.terms) {
      to.terms.push_back({weight, start, stop, least_timestep});
    }
    to.skipped_blocks.assign(branch.skipped_blocks.begin(), branch.skipped_blocks.end());
  }
  prompt.guidance.rescale = sent.rescale;
  prompt.guidance.norm_limit = sent.norm_limit;
  prompt.guidance.kept_norm_patch = sent.kept_norm_patch;
  prompt.guidance.conditional = static_cast<size_t>(sent.conditional);
  prompt.prompt_tokens = sent.prompt_tokens;
  prompt.cached = sent.cached;
  for (const SentText& warning : sent.warnings) prompt.warnings.push_back(warning.text);
  return ok ? std::optional(std::move(prompt)) : std::nullopt;
}

// Whether tensors of these shapes may be sent. Nothing else is allocated on a peer's word.
bool IsValid(const SentPrompt& sent) {
  if (!base::CheckFields(sent).ok()) return false;
  int64_t bytes_left = kMaxTensorBytes;
  for (const SentTensor& tensor : sent.tensors) {
    auto bytes = static_cast<int64_t>(c10::elementSize(kDtypes[tensor.dtype]));
    for (const int64_t size : tensor.sizes) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) return false;
    }
    bytes_left -= std::min(bytes, bytes_left + 1);
    if (bytes_left < 0) return false;
  }
  return true;
}

struct Message {
  std::string description;
  std::vector<at::Tensor> tensors;
};

// ResourceExhausted for a prompt that no receiver would accept.
absl::StatusOr<Message> MessageOf(const absl::StatusOr<models::EncodedPrompt>& prompt) {
  Message message;
  SentPrompt sent;
  if (prompt.ok()) {
    sent = DescriptionOf(*prompt, message.tensors);
  } else {
    sent.code = static_cast<uint8_t>(prompt.status().code());
    sent.reason = std::string(prompt.status().message());
  }
  message.description = base::EncodeFields(sent);
  if (IsValid(sent) && std::ssize(message.description) <= kMaxDescriptionBytes) return message;
  return absl::ResourceExhaustedError("the encoded prompt is too large to send to other ranks");
}

at::Tensor Bytes(int64_t count) { return at::empty({count}, at::kByte); }

// The description is sent between hosts, the tensors between devices.
void Send(const Message& message, parallel::Communicator& control, parallel::Communicator& world) {
  control.Broadcast(at::full({1}, std::ssize(message.description), at::kLong), kFirst);
  const at::Tensor description = Bytes(std::ssize(message.description));
  std::memcpy(description.mutable_data_ptr(), message.description.data(), message.description.size());
  control.Broadcast(description, kFirst);
  for (const at::Tensor& tensor : message.tensors) world.Broadcast(tensor.contiguous(), kFirst);
}

absl::StatusOr<models::EncodedPrompt> Receive(parallel::Communicator& control, parallel::Communicator& world,
                                              at::Device device) {
  const auto require = [&](bool condition, const char* reason) {
    if (condition) return;
    throw parallel::CommError(
        {.rank = world.rank(), .group = "world", .call = "Broadcast", .culprit = kFirst, .reason = reason});
  };
  const at::Tensor size = at::zeros({1}, at::kLong);
  control.Broadcast(size, kFirst);
  const auto bytes = size.item<int64_t>();
  require(bytes >= 0 && bytes <= kMaxDescriptionBytes, "the description of an encoded prompt has an invalid length");
  const at::Tensor description = Bytes(bytes);
  control.Broadcast(description, kFirst);

  SentPrompt sent;
  const std::string_view text(static_cast<const char*>(description.const_data_ptr()), static_cast<size_t>(bytes));
  require(base::DecodeFields(text, sent).ok() && IsValid(sent), "the encoded prompt is malformed");
  std::vector<at::Tensor> tensors;
  for (const SentTensor& tensor : sent.tensors) {
    tensors.push_back(at::empty(tensor.sizes, at::TensorOptions(kDtypes[tensor.dtype]).device(device)));
  }
  std::optional<models::EncodedPrompt> prompt = PromptOf(sent, tensors);
  require(prompt.has_value(), "a prompt names a tensor that was not sent");
  for (const at::Tensor& tensor : tensors) world.Broadcast(tensor, kFirst);
  if (sent.code != 0) return absl::Status(static_cast<absl::StatusCode>(sent.code), sent.reason);
  return *std::move(prompt);
}

}  // namespace

absl::StatusOr<models::EncodedPrompt> BroadcastPrompt(absl::StatusOr<models::EncodedPrompt> prompt,
                                                      parallel::Communicator& control, parallel::Communicator& world,
                                                      at::Device device) {
  if (world.size() == 1) return prompt;
  if (world.rank() != kFirst) return Receive(control, world, device);
  absl::StatusOr<Message> message = MessageOf(prompt);
  if (!message.ok()) {
    prompt = message.status();
    message = MessageOf(prompt);
  }
  Send(*message, control, world);
  return prompt;
}

}  // namespace tessera::runtime
