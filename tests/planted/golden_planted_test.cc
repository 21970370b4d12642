// Runs golden cases with a bug planted in the worker's code. Some of the cases that cover it must fail.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/golden_runner/golden_case.h"
#include "tests/support/planted_bug.h"

namespace tessera::golden {
namespace {

struct Counted {
  int passed = 0, failed = 0;
};

// Runs the cases whose names contain `only`.
Counted RunCases(const std::string& only, const std::string& folder = "tests/golden") {
  const absl::StatusOr<std::vector<Case>> cases = ReadCases(folder);
  EXPECT_TRUE(cases.ok()) << cases.status();
  Counted counted;
  if (!cases.ok()) return counted;
  for (const Case& test_case : *cases) {
    if (test_case.file.find(only) == std::string::npos) continue;
    const absl::StatusOr<Report> report = RunCase(test_case);
    if (absl::IsUnimplemented(report.status())) continue;
    ++(report.ok() && report->passed() ? counted.passed : counted.failed);
  }
  return counted;
}

constexpr char kNewer[] = "tests/golden-newer";
constexpr char kEdit[] = "tests/golden-edit";
constexpr char kFiles[] = "tests/golden-files";

struct GoldenBug {
  const char* name;
  const char* cases;
  const char* folder = "tests/golden";
};

class PlantedGoldenTest : public testing::TestWithParam<GoldenBug> {};

TEST_P(PlantedGoldenTest, FailsCases) {
  const PlantedBug planted(GetParam().name);
  EXPECT_GT(RunCases(GetParam().cases, GetParam().folder).failed, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedGoldenTest,
    testing::Values(GoldenBug{"attention_scale", "transformers/pixart_alpha.0"},
                    GoldenBug{"attention_mask", "transformers/pixart_alpha.0"},
                    GoldenBug{"position_axes", "transformers/pixart_alpha.1"},
                    GoldenBug{"guidance", "trajectories/pixart_alpha.0"},
                    GoldenBug{"sampler_history", "schedulers/dpm_order2"},
                    GoldenBug{"timestep_off_by_one", "schedulers/dpm_order2"},
                    GoldenBug{"shift_missing", "trajectories/flux_dev.0"},
                    GoldenBug{"shift_applied_once", "trajectories/sd3.0"},
                    GoldenBug{"flux_guidance_thousand", "transformers/flux_dev.0"},
                    GoldenBug{"flux_rope_axes", "transformers/flux_dev.1"},
                    GoldenBug{"flux_text_image_order", "transformers/flux_dev.0"},
                    GoldenBug{"flux_scale_shift", "transformers/flux_dev.0"},
                    GoldenBug{"packed_latents", "trajectories/flux_dev.0"},
                    GoldenBug{"hunyuan_rope_axes", "transformers/hunyuan12.1"},
                    GoldenBug{"decoder_rotates_pairs", "text_encoders/z_image_base", kNewer},
                    GoldenBug{"decoder_penultimate_normed", "text_encoders/z_image_base", kNewer},
                    GoldenBug{"z_image_frame_after_text", "transformers/z_image_base.0.f64", kNewer},
                    GoldenBug{"z_image_text_padding_kept", "transformers/z_image_base.0.f64", kNewer},
                    GoldenBug{"z_image_silu_before_modulation", "transformers/z_image_base.0.f64", kNewer},
                    GoldenBug{"z_image_gate_without_tanh", "transformers/z_image_base.0.f64", kNewer},
                    GoldenBug{"z_image_channel_slowest", "trajectories/z_image_turbo.0", kNewer},
                    GoldenBug{"guidance_norm_not_limited", "trajectories/z_image_base.1", kNewer},
                    GoldenBug{"patch_channels_fastest", "vae/flux2_klein.0", kNewer},
                    GoldenBug{"flux2_gate_last", "transformers/flux2_klein_base.0.f64", kNewer},
                    GoldenBug{"flux2_text_at_one_place", "transformers/flux2_klein_base.0.f64", kNewer},
                    GoldenBug{"flux2_references_at_the_image", "transformers/flux2_klein.3.f64", kNewer},
                    GoldenBug{"empirical_shift_missing", "trajectories/flux2_klein.0", kNewer},
                    GoldenBug{"flux2_references_read_all", "transformers/flux2_klein.kv.0", kEdit},
                    GoldenBug{"flux2_references_at_the_timestep", "transformers/flux2_klein.kv.0", kEdit},
                    GoldenBug{"padding_reads_padding", "trajectories/flux2_edit.2", kEdit},
                    GoldenBug{"first_slice_in_time", "vae/qwen_image.0", kNewer},
                    GoldenBug{"qwen_text_from_zero", "transformers/qwen_image.0.f64", kNewer},
                    GoldenBug{"qwen_positions_from_the_corner", "transformers/qwen_image.0.f64", kNewer},
                    GoldenBug{"guidance_patch_norms_not_kept", "trajectories/qwen_image.0", kNewer},
                    GoldenBug{"picture_counts_as_text", "trajectories/qwen_edit_2511.1", kEdit},
                    GoldenBug{"text_after_all_of_a_picture", "functions/layouts", kEdit},
                    GoldenBug{"vision_without_windows", "trajectories/qwen_edit_2511.1", kEdit},
                    GoldenBug{"units_in_the_order_of_windows", "trajectories/qwen_edit_2511.1", kEdit},
                    GoldenBug{"references_at_the_timestep", "trajectories/qwen_edit_2511.1", kEdit},
                    GoldenBug{"halves_not_swapped", "expected/flux_tiny.control", kFiles},
                    GoldenBug{"int8_divided_by_128", "expected/folder.sd35_small_int8", kFiles},
                    GoldenBug{"nested_offset_left_out", "expected/folder.flux_small_nf4.transformer", kFiles},
                    GoldenBug{"hunyuan_padding_kept", "transformers/hunyuan12.0"},
                    GoldenBug{"hunyuan_skip_order", "transformers/hunyuan12.0"},
                    GoldenBug{"clip_pooled_token", "text_encoders/flux_dev.text_encoder."},
                    GoldenBug{"clip_layer", "trajectories/sd3.0"},
                    GoldenBug{"references_at_the_image", "flux_kontext.0", "tests/golden-inputs"},
                    GoldenBug{"mean_of_the_picture", "flux_img2img.0", "tests/golden-inputs"},
                    GoldenBug{"mask_averaged", "flux_inpaint.1", "tests/golden-inputs"},
                    GoldenBug{"blend_noise_redrawn", "flux_inpaint.1", "tests/golden-inputs"},
                    GoldenBug{"fill_channels_swapped", "flux_fill.0", "tests/golden-inputs"},
                    GoldenBug{"adapter_halves_not_exchanged", "flux_kohya_all", "tests/golden-inputs"},
                    GoldenBug{"adapter_patterns_are_whole_names", "flux_peft_patterns", "tests/golden-inputs"}),
    [](const auto& info) { return info.param.name; });

TEST(PlantedGoldenTest, WithoutABugNoCaseFails) {
  const Counted counted = RunCases(".0.f64");
  EXPECT_EQ(counted.failed, 0);
  EXPECT_GT(counted.passed, 0);
}

}  // namespace
}  // namespace tessera::golden
