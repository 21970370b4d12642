#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/product.h"
#include "kernels/reference/operators.h"

namespace tessera::kernels::cpu {
namespace {

// The geometry of a convolution: the input images and the window that slides over them.
struct Window {
  int64_t channels, height, width;  // of the input
  int64_t plane_stride;             // elements between channels
  int64_t kernel_height, kernel_width;
  int64_t stride, top, left;  // `top`, `left`: zeros above and to the left of the image
  int64_t out_height, out_width;
  int64_t depth() const { return channels * kernel_height * kernel_width; }

  // Returns, for each element of the weight, the offset in elements of the input that output pixel 0 reads, from the
  // image's first element. If AllInside, pixel i of the same row reads at an offset larger by i.
  std::vector<int64_t> Offsets() const {
    std::vector<int64_t> offsets;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t ky = 0; ky < kernel_height; ++ky) {
        for (int64_t kx = 0; kx < kernel_width; ++kx) {
          offsets.push_back(c * plane_stride + (ky - top) * width + kx - left);
        }
      }
    }
    return offsets;
  }

  // Returns whether output pixels [x, x + count) of row y read adjacent elements and none outside the image.
  bool AllInside(int64_t y, int64_t x, int64_t count) const {
    return stride == 1 && y >= top && y - top + kernel_height <= height && x >= left &&
           x - left + count + kernel_width - 1 <= width && x + count <= out_width;
  }
};

// columns[k - begin][pixel] = the input that output pixels [first, first + count) read with element k of the weight,
// for k in [begin, end).
template <typename T>
void GatherPixels(const Window& window, const T* image, int64_t first, int64_t count, int64_t begin, int64_t end,
                  T* columns) {
  for (int64_t done = 0; done < count;) {
    const int64_t y = (first + done) / window.out_width, x = (first + done) % window.out_width;
    const int64_t run = std::min(count - done, window.out_width - x);  // pixels in one row of the output
    T* to = columns + done;
    int64_t kx = begin % window.kernel_width, ky = begin / window.kernel_width % window.kernel_height;
    int64_t c = begin / (window.kernel_width * window.kernel_height);
    for (int64_t k = begin; k < end; ++k, to += count) {
      const int64_t row = y * window.stride + ky - window.top, column = x * window.stride + kx - window.left;
      const T* from = image + c * window.plane_stride + row * window.width;
      if (row < 0 || row >= window.height) {
        std::fill(to, to + run, T{});
      } else if (window.stride == 1 && column >= 0 && column + run <= window.width) {
        std::memcpy(to, from + column, static_cast<size_t>(run) * sizeof(T));
      } else {
        for (int64_t i = 0; i < run; ++i) {
          const int64_t at = column + i * window.stride;
          to[i] = at >= 0 && at < window.width ? from[at] : T{};
        }
      }
      if (++kx < window.kernel_width) continue;
      kx = 0;
      if (++ky < window.kernel_height) continue;
      ky = 0;
      ++c;
    }
    done += run;
  }
}

void Gather(int64_t size, const Window& window, const char* image, int64_t first, int64_t count, int64_t begin,
            int64_t end, void* columns) {
  const auto gather = [&]<typename T>(T* to) {
    GatherPixels(window, reinterpret_cast<const T*>(image), first, count, begin, end, to);
  };
  if (size == 8) {
    gather(static_cast<uint64_t*>(columns));
  } else if (size == 4) {
    gather(static_cast<uint32_t*>(columns));
  } else {
    gather(static_cast<uint16_t*>(columns));
  }
}

// The output pixels of all images as panels of the right operand of a product.
class PixelPanels {
 public:
  PixelPanels(const ProductKernels& kernels, const Window& window, const at::Tensor& images)
      : kernels_(kernels),
        window_(window),
        images_(images),
        size_(images.element_size()),
        pixels_(window.out_height * window.out_width),
        of_image_((pixels_ + kernels.columns - 1) / kernels.columns),
        offsets_(window.Offsets()) {}

  int64_t count() const { return images_.size(0) * of_image_; }
  int64_t image(int64_t panel) const { return panel / of_image_; }
  int64_t first_pixel(int64_t panel) const { return panel % of_image_ * kernels_.columns; }
  int64_t columns(int64_t panel) const { return std::min(kernels_.columns, pixels_ - first_pixel(panel)); }

  // Bytes that Pack needs for `depth` elements of the weight.
  int64_t GatheredBytes(int64_t depth) const { return depth * kernels_.columns * size_; }

  // Packs the inputs that a panel's pixels read with elements [k, k + depth) of the weight.
  void Pack(int64_t panel, int64_t k, int64_t depth, void* gathered, void* packed) const {
    const char* from = static_cast<const char*>(images_.const_data_ptr()) + image(panel) * images_.stride(0) * size_;
    const int64_t pixel = first_pixel(panel), count = columns(panel);
    const int64_t y = pixel / window_.out_width, x = pixel % window_.out_width;
    if (count == kernels_.columns && window_.AllInside(y, x, count)) {
      kernels_.pack_rows(from + (y * window_.width + x) * size_, offsets_.data() + k, depth, packed);
    } else {
      Gather(size_, window_, from, pixel, count, k, k + depth, gathered);
      kernels_.pack({.data = gathered, .depth_stride = count, .column_stride = 1, .columns = count}, depth, packed);
    }
  }

 private:
  const ProductKernels& kernels_;
  const Window& window_;
  const at::Tensor& images_;
  int64_t size_, pixels_, of_image_;
  std::vector<int64_t> offsets_;
};

}  // namespace

// Multiplies the weight, whose rows are output channels, with panels of pixels.
at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding, Isa isa) {
  const at::ScalarType type = x.scalar_type();
  const std::optional<ProductElement> element = ProductElementOf(type);
  if (!element) return reference::Conv2d(x, weight, bias, stride, padding);
  TORCH_CHECK(x.dim() == 4 && weight.dim() == 4 && x.size(1) == weight.size(1) && weight.scalar_type() == type &&
                  bias.dim() == 1 && bias.size(0) == weight.size(0) && bias.scalar_type() == type &&
                  padding.size() == 4 && stride >= 1,
              "conv2d: an image of ", x.sizes(), " does not fit a weight of ", weight.sizes());
  const at::Tensor images = WithRowsInOrder(x);
  Window window{.channels = x.size(1),
                .height = x.size(2),
                .width = x.size(3),
                .plane_stride = images.stride(1),
                .kernel_height = weight.size(2),
                .kernel_width = weight.size(3),
                .stride = stride,
                .top = padding[0],
                .left = padding[2]};
  window.out_height = (window.height + padding[0] + padding[1] - window.kernel_height) / stride + 1;
  window.out_width = (window.width + padding[2] + padding[3] - window.kernel_width) / stride + 1;
  const int64_t b = x.size(0), out = weight.size(0), depth = window.depth(), size = x.element_size();
  const int64_t pixels = window.out_height * window.out_width;
  at::Tensor result = at::empty({b, out, window.out_height, window.out_width}, x.options());
  if (result.numel() == 0) return result;

  const at::Tensor rows = weight.contiguous(), biases = bias.contiguous();
  const ProductKernels& kernels = ProductFor(isa, *element);
  const ProductBlocks blocks(kernels, out, depth);
  const PixelPanels panels(kernels, window, images);
  const int64_t block_bytes = (kernels.prepared_bytes(blocks.most_rows(), blocks.slice()) + 63) / 64 * 64;
  const AlignedBuffer prepared(blocks.slices() * blocks.count() * block_bytes);
  const auto block_at = [&](int64_t slice, int64_t block) {
    return static_cast<char*>(prepared.get()) + (slice * blocks.count() + block) * block_bytes;
  };
  for (int64_t slice = 0; slice < blocks.slices(); ++slice) {
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const int64_t element = blocks.first_row(block) * depth + blocks.first_depth(slice);
      kernels.prepare(static_cast<const char*>(rows.const_data_ptr()) + element * size, depth, blocks.rows(block),
                      blocks.depth(slice), block_at(slice, block));
    }
  }
  // The slices of several panels are multiplied with a block of the weight while it is in the cache.
  const int64_t most_panels = blocks.slices() > 1 ? 8 : 1, panel_bytes = kernels.panel_bytes(blocks.slice());
  const int64_t waiting = blocks.slices() > 1 ? blocks.count() * most_panels : 1;
  const int64_t scratch_bytes = kernels.scratch_bytes(blocks.slice());
  ShareOut(panels.count(), [&](const TakePieces& take) {
    const AlignedBuffer gathered(panels.GatheredBytes(blocks.slice()));
    const AlignedBuffer packed(most_panels * panel_bytes);
    const AlignedBuffer scratch(waiting * scratch_bytes);
    for (PieceShares::Range taken = take(most_panels); !taken.empty(); taken = take(most_panels)) {
      const int64_t group = taken.first, count = taken.last - taken.first;
      const auto packed_at = [&](int64_t i) { return static_cast<char*>(packed.get()) + i * panel_bytes; };
      for (int64_t slice = 0; slice < blocks.slices(); ++slice) {
        for (int64_t i = 0; i < count; ++i) {
          panels.Pack(group + i, blocks.first_depth(slice), blocks.depth(slice), gathered.get(), packed_at(i));
        }
        for (int64_t block = 0; block < blocks.count(); ++block) {
          const int64_t channel = blocks.first_row(block);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t panel = group + i;
            const int64_t place = (panels.image(panel) * out + channel) * pixels + panels.first_pixel(panel);
            kernels.multiply(block_at(slice, block), packed_at(i),
                             {.rows = blocks.rows(block),
                              .columns = panels.columns(panel),
                              .depth = blocks.depth(slice),
                              .row_bias = static_cast<const char*>(biases.const_data_ptr()) + channel * size,
                              .out = static_cast<char*>(result.mutable_data_ptr()) + place * size,
                              .out_stride = pixels,
                              .is_first_slice = slice == 0,
                              .is_last_slice = slice + 1 == blocks.slices()},
                             static_cast<char*>(scratch.get()) + (block * most_panels + i) % waiting * scratch_bytes);
          }
        }
      }
    }
  });
  return result;
}

// Each output reads three rows of the enlarged image, of which two are equal: the upper two for an odd output row, the
// lower two for an even one. The same holds for columns. So the outputs of each parity are a convolution of the
// original image with half as many rows and columns, whose weights are sums.
at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count, Isa isa) {
  TORCH_CHECK(x.dim() == 4 && weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3 && first >= 0 &&
                  count >= 1 && first + count <= 2 * x.size(2),
              "upsampled_conv2d: rows ", first, " and ", count, " more of an image of ", x.sizes(),
              " do not fit a weight of ", weight.sizes());
  if (!ProductElementOf(x.scalar_type())) return reference::UpsampledConv2d(x, weight, bias, first, count);
  const int64_t height = x.size(2), width = x.size(3);
  at::Tensor result = at::empty({x.size(0), weight.size(0), count, 2 * width}, x.options());
  const auto halved = [](const at::Tensor& w, int64_t dim, int64_t parity) {
    const at::Tensor middle = w.select(dim, 1);
    return parity == 0 ? at::stack({w.select(dim, 0), middle + w.select(dim, 2)}, dim)
                       : at::stack({w.select(dim, 0) + middle, w.select(dim, 2)}, dim);
  };
  const at::Tensor wide = x.scalar_type() == at::kBFloat16 ? weight.to(at::kFloat) : weight;
  for (const int64_t vertical : {0, 1}) {
    // Output rows of this parity correspond to rows [begin, end) of the image; each reads its own row and the one above
    // or below.
    const int64_t begin = (first + 1 - vertical) / 2, end = (first + count + 1 - vertical) / 2;
    if (begin == end) continue;
    const int64_t top = begin - 1 + vertical, bottom = end + vertical;
    const at::Tensor rows = x.slice(2, std::max<int64_t>(0, top), std::min(height, bottom));
    const at::Tensor of_rows = halved(wide, 2, vertical);
    for (const int64_t horizontal : {0, 1}) {
      const at::Tensor part = Conv2d(rows, halved(of_rows, 3, horizontal).to(weight.scalar_type()), bias, /*stride=*/1,
                                     {top < 0 ? 1 : 0, bottom > height ? 1 : 0, 1 - horizontal, horizontal}, isa);
      result.slice(2, 2 * begin + vertical - first, count, 2).slice(3, horizontal, 2 * width, 2).copy_(part);
    }
  }
  return result;
}

}  // namespace tessera::kernels::cpu
