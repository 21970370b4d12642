// Runs the cases of packed forms: GGUF's blocks and the codes of fp8. All values must be equal bit for bit.
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "kernels/cpu/widen.h"
#include "models/loading/weight_loader.h"
#include "models/weights/gguf.h"
#include "models/weights/stored_types.h"
#include "tests/golden_runner/golden_case.h"
#include "tests/support/instruction_sets.h"

namespace tessera::golden {
namespace {

constexpr char kBytes[] = "bytes.", kValues[] = "values.";

// Compares rows on every instruction set of this machine with the values of the golden.
void Compare(const std::string& what, const kernels::QuantRows& rows, const at::Tensor& expected, double tolerance,
             Report& report) {
  const at::Tensor values = at::empty({expected.numel()}, at::kFloat);
  for (const kernels::cpu::Isa isa : IsasOfThisMachine()) {
    kernels::cpu::WidenRows(rows, 0, expected.numel() / rows.columns, values.mutable_data_ptr<float>(), isa);
    report.Add(absl::StrCat(what, " with instruction set ", static_cast<int>(isa)),
               AbsoluteError(values, expected.flatten()), tolerance);
  }
}

}  // namespace

absl::StatusOr<Report> RunBlocks(const Case& test_case) {
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  const std::string name = test_case.Text("file");
  ASSIGN_OR_RETURN(const models::GgufFile file, models::GgufFile::Open(test_case.Path(name), name));
  Report report;
  for (const auto& [key, expected] : gold) {
    if (!key.starts_with(kValues)) continue;
    const std::string type_name = key.substr(std::strlen(kValues));
    const models::StoredTensor* tensor = file.Find(type_name + ".weight");
    if (tensor == nullptr || tensor->shape.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has no matrix ", type_name, ".weight"));
    }
    const at::Tensor bytes = at::empty({static_cast<int64_t>(tensor->bytes())}, at::kByte);
    RETURN_IF_ERROR(file.Read(*tensor, 0, {static_cast<std::byte*>(bytes.data_ptr()), bytes.nbytes()}));
    if (const auto stored = gold.find(kBytes + type_name); stored != gold.end()) {
      report.Add(absl::StrCat("bytes of ", type_name), AbsoluteError(bytes, stored->second.flatten()), 0);
    }
    const int64_t columns = tensor->shape[1];
    if (tensor->elements() != expected.numel()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", type_name, " has another number of values"));
    }
    if (const std::optional<at::ScalarType> plain = models::TorchType(tensor->type)) {
      report.Add(type_name, AbsoluteError(bytes.view(*plain).to(at::kFloat), expected.flatten()),
                 test_case.Tolerance("fp32"));
      continue;
    }
    const std::optional<kernels::QuantType> type = models::QuantTypeOf(tensor->type);
    if (!type) return absl::InvalidArgumentError(absl::StrCat(name, ": ", type_name, " is not a type of blocks"));
    Compare(type_name,
            {.type = *type,
             .bytes = static_cast<const std::byte*>(bytes.const_data_ptr()),
             .row_bytes = kernels::RowBytes(*type, columns),
             .columns = columns},
            expected, test_case.Tolerance("fp32"), report);
  }
  return report;
}

absl::StatusOr<Report> RunCodes(const Case& test_case) {
  if (test_case.Text("function") != "fp8") {
    return absl::UnimplementedError(absl::StrCat("codes of ", base::Quote(test_case.Text("function"))));
  }
  ASSIGN_OR_RETURN(const Tensors gold, ReadTensors(test_case.Path(test_case.file)));
  constexpr int64_t kCodes = 256;
  const at::Tensor codes = at::arange(kCodes, at::kByte);
  const float one = 1;
  Report report;
  for (const auto& [name, type] :
       {std::pair("e4m3fn", kernels::QuantType::kF8E4M3), std::pair("e5m2", kernels::QuantType::kF8E5M2)}) {
    const auto expected = gold.find(absl::StrCat(name, ".values")), kinds = gold.find(absl::StrCat(name, ".class"));
    if (expected == gold.end() || kinds == gold.end()) continue;
    const kernels::QuantRows rows{.type = type,
                                  .bytes = static_cast<const std::byte*>(codes.const_data_ptr()),
                                  .row_bytes = kCodes,
                                  .columns = kCodes,
                                  .scales = &one};
    for (const kernels::cpu::Isa isa : IsasOfThisMachine()) {
      const at::Tensor values = at::empty({kCodes}, at::kFloat);
      kernels::cpu::WidenRows(rows, 0, 1, values.mutable_data_ptr<float>(), isa);
      const std::string what = absl::StrCat(name, " with instruction set ", static_cast<int>(isa));
      const at::Tensor kind = at::isinf(values).to(at::kByte) + 2 * at::isnan(values).to(at::kByte);
      report.Add(absl::StrCat("kinds of ", what), AbsoluteError(kind, kinds->second), 0);
      report.Add(absl::StrCat("values of ", what),
                 AbsoluteError(at::where(at::isfinite(values), values, at::zeros_like(values)), expected->second),
                 test_case.Tolerance("fp32"));
    }
  }
  return report;
}

}  // namespace tessera::golden
