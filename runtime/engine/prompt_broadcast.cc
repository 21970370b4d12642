#include "runtime/engine/prompt_broadcast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {
namespace {

// More than any prompt has. It bounds what a receiver allocates on a peer's word.
constexpr int64_t kMaxDescriptionBytes = int64_t{16} << 20;
constexpr int64_t kMaxTensorBytes = int64_t{4} << 30;
constexpr int64_t kMaxDims = 8;

constexpr int kFirst = 0;

constexpr std::array kDtypes = {at::kByte, at::kChar,     at::kShort, at::kInt,  at::kLong,         at::kDouble,
                                at::kHalf, at::kBFloat16, at::kFloat, at::kBool, at::kComplexFloat, at::kComplexDouble};

// A prompt is sent as a description of whole 8-byte numbers and texts, followed by the tensors, each once because
// branches may share a row. Both sides walk the same fields in the same functions, whose structured bindings fail to
// compile when a field is added and not named.
template <class Archive>
void Walk(Archive& archive, models::GuidanceTerm& term) {
  auto& [weight, start, stop] = term;
  archive(weight, start, stop);
}

template <class Archive>
void Walk(Archive& archive, models::GuidanceBranch& branch) {
  auto& [row, terms, skipped_blocks] = branch;
  auto& [text, extras] = row;
  archive(text, extras, terms, skipped_blocks);
}

template <class Archive>
void Walk(Archive& archive, models::EncodedPrompt& prompt) {
  auto& [guidance, prompt_tokens, cached, warnings] = prompt;
  auto& [branches, rescale, conditional] = guidance;
  archive(branches, rescale, conditional, prompt_tokens, cached, warnings);
}

class Writer {
 public:
  template <class... Fields>
  void operator()(Fields&... fields) {
    (Put(fields), ...);
  }

  const std::string& bytes() const { return bytes_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  void Put(std::integral auto& value) {
    const auto wide = static_cast<int64_t>(value);
    bytes_.append(reinterpret_cast<const char*>(&wide), sizeof(wide));
  }
  void Put(double& value) {
    int64_t bits = std::bit_cast<int64_t>(value);
    Put(bits);
  }
  void Put(std::string& text) {
    size_t size = text.size();
    Put(size);
    bytes_ += text;
  }
  void Put(at::Tensor& tensor) {
    int64_t index = -1;  // undefined tensor
    if (tensor.defined()) {
      const auto same = [&](const at::Tensor& other) { return other.is_same(tensor); };
      index = std::find_if(tensors_.begin(), tensors_.end(), same) - tensors_.begin();
      if (index == std::ssize(tensors_)) tensors_.push_back(tensor);
    }
    Put(index);
  }
  template <class Item>
  void Put(std::vector<Item>& items) {
    size_t size = items.size();
    Put(size);
    for (Item& item : items) Put(item);
  }
  template <class Struct>
  void Put(Struct& fields) {
    Walk(*this, fields);
  }

  std::string bytes_;
  std::vector<at::Tensor> tensors_;
};

// After a missing field or one out of range, ok() is false and everything that follows is empty.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (Get(fields), ...);
  }

  bool ok() const { return ok_; }
  bool finished() const { return ok_ && position_ == bytes_.size(); }
  // The tensors that the description refers to.
  void set_tensors(std::vector<at::Tensor> tensors) { tensors_ = std::move(tensors); }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  void Require(bool condition) {
    if (condition) return;
    ok_ = false;
    position_ = bytes_.size();
  }
  size_t left() const { return bytes_.size() - position_; }

  template <std::integral Integer>
  void Get(Integer& value) {
    int64_t wide = 0;
    Require(left() >= sizeof(wide));
    if (ok_) {
      std::memcpy(&wide, bytes_.data() + position_, sizeof(wide));
      position_ += sizeof(wide);
    }
    if constexpr (std::same_as<Integer, bool>) {
      Require(wide == 0 || wide == 1);
    } else {
      Require(std::in_range<Integer>(wide));
    }
    value = ok_ ? static_cast<Integer>(wide) : Integer{};
  }
  void Get(double& value) {
    int64_t bits = 0;
    Get(bits);
    value = std::bit_cast<double>(bits);
  }
  void Get(std::string& text) {
    size_t size = 0;
    Get(size);
    Require(size <= left());
    if (!ok_) return;
    text = bytes_.substr(position_, size);
    position_ += size;
  }
  void Get(at::Tensor& tensor) {
    int64_t index = 0;
    Get(index);
    Require(index >= -1 && index < std::ssize(tensors_));
    if (ok_ && index >= 0) tensor = tensors_[static_cast<size_t>(index)];
  }
  template <class Item>
  void Get(std::vector<Item>& items) {
    size_t size = 0;
    Get(size);
    Require(size <= left() / sizeof(int64_t));  // the minimum size of an item
    if (!ok_) return;
    items.resize(size);
    for (Item& item : items) Get(item);
  }
  template <class Struct>
  void Get(Struct& fields) {
    Walk(*this, fields);
  }

  std::string bytes_;
  std::vector<at::Tensor> tensors_;
  size_t position_ = 0;
  bool ok_ = true;
};

struct TensorShape {
  int64_t dtype = 0;  // index in kDtypes
  std::vector<int64_t> sizes;
};

template <class Archive>
void Walk(Archive& archive, TensorShape& shape) {
  auto& [dtype, sizes] = shape;
  archive(dtype, sizes);
}

// Whether a tensor of this shape may be sent. Nothing else is allocated on a peer's word.
bool IsValid(const TensorShape& shape, int64_t& bytes_left) {
  if (shape.dtype < 0 || shape.dtype >= std::ssize(kDtypes) || std::ssize(shape.sizes) > kMaxDims) return false;
  auto bytes = static_cast<int64_t>(c10::elementSize(kDtypes[static_cast<size_t>(shape.dtype)]));
  for (const int64_t size : shape.sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return false;
  }
  bytes_left -= std::min(bytes, bytes_left + 1);
  return bytes_left >= 0;
}

struct Message {
  std::string description;
  std::vector<at::Tensor> tensors;
};

// ResourceExhausted for a prompt that no receiver would accept.
absl::StatusOr<Message> MessageOf(absl::StatusOr<models::EncodedPrompt>& prompt) {
  Writer head, body;
  auto code = static_cast<int>(prompt.status().code());
  std::string reason(prompt.status().message());
  std::vector<TensorShape> shapes;
  if (prompt.ok()) {
    body(*prompt);
    for (const at::Tensor& tensor : body.tensors()) {
      shapes.push_back({.dtype = std::find(kDtypes.begin(), kDtypes.end(), tensor.scalar_type()) - kDtypes.begin(),
                        .sizes = tensor.sizes().vec()});
    }
  }
  head(code, reason, shapes);
  int64_t bytes_left = kMaxTensorBytes;
  const bool valid = std::ranges::all_of(shapes, [&](const TensorShape& s) { return IsValid(s, bytes_left); });
  Message message{.description = head.bytes() + body.bytes(), .tensors = body.tensors()};
  if (valid && std::ssize(message.description) <= kMaxDescriptionBytes) return message;
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

  Reader reader(std::string(static_cast<const char*>(description.const_data_ptr()), static_cast<size_t>(bytes)));
  int code = 0;
  std::string reason;
  std::vector<TensorShape> shapes;
  reader(code, reason, shapes);
  int64_t bytes_left = kMaxTensorBytes;
  std::vector<at::Tensor> tensors;
  for (const TensorShape& shape : shapes) {
    require(IsValid(shape, bytes_left), "a tensor of an encoded prompt has an invalid shape");
    tensors.push_back(
        at::empty(shape.sizes, at::TensorOptions(kDtypes[static_cast<size_t>(shape.dtype)]).device(device)));
  }
  reader.set_tensors(std::move(tensors));
  models::EncodedPrompt prompt;
  if (reader.ok() && code == 0) reader(prompt);
  require(reader.finished() && code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated),
          "the encoded prompt is malformed");
  for (const at::Tensor& tensor : reader.tensors()) world.Broadcast(tensor, kFirst);
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), reason);
  return prompt;
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
