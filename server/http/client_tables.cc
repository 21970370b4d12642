#include "server/http/client_tables.h"

namespace tessera::server {
namespace {

// The models of its requests and the extra fields that it reads, of 0.5.23; adapters as in its route set_lora.
constexpr ClientField kSglangFields[] = {
    {"width", Meaning::kSide, "width"},
    {"height", Meaning::kSide, "height"},
    {"num_outputs_per_prompt", Meaning::kField, "n"},
    {"url", Meaning::kPicture, "images"},
    {"lora_nickname", Meaning::kAdapter},
    {"lora_path", Meaning::kAdapter},
    {"lora_scale", Meaning::kScale},
    {"attention_backend_override", Meaning::kIgnored},
    {"cache_dit_params", Meaning::kIgnored},
    {"cfg_gate_step", Meaning::kIgnored},
    {"diffusers_kwargs", Meaning::kIgnored},
    {"enable_cache_dit", Meaning::kIgnored},
    {"enable_teacache", Meaning::kIgnored},
    {"enable_upscaling", Meaning::kIgnored},
    {"enhance_prompt", Meaning::kIgnored},
    {"flow_shift", Meaning::kIgnored},
    {"generator_device", Meaning::kIgnored},
    {"num_profiled_timesteps", Meaning::kIgnored},
    {"output_quality", Meaning::kIgnored},
    {"perf_dump_path", Meaning::kIgnored},
    {"profile", Meaning::kIgnored},
    {"profile_all_stages", Meaning::kIgnored},
    {"progressive_delta", Meaning::kIgnored},
    {"progressive_levels", Meaning::kIgnored},
    {"progressive_mode", Meaning::kIgnored},
    {"skip_softmax_params", Meaning::kIgnored},
    {"task_type", Meaning::kIgnored},
    {"upscaling_model_path", Meaning::kIgnored},
    {"upscaling_scale", Meaning::kIgnored},
};
constexpr const char* kSglangContainers[] = {"extra_body", "extra_json", "extra_args", "extra_params"};

// The model of its requests, the names in its adapters, and the fields of its load client, of 0.30.0.
constexpr ClientField kVllmOmniFields[] = {
    {"width", Meaning::kSide, "width"},
    {"height", Meaning::kSide, "height"},
    {"num_outputs_per_prompt", Meaning::kField, "n"},
    {"url", Meaning::kPicture, "images"},
    {"reference_image", Meaning::kPicture, "images"},
    {"mask_image", Meaning::kPicture, "mask"},
    {"lora.name", Meaning::kAdapter},
    {"lora.lora_name", Meaning::kAdapter},
    {"lora.adapter", Meaning::kAdapter},
    {"lora.path", Meaning::kAdapter},
    {"lora.local_path", Meaning::kAdapter},
    {"lora.lora_path", Meaning::kAdapter},
    {"lora.lora_local_path", Meaning::kAdapter},
    {"lora.scale", Meaning::kScale},
    {"lora.lora_scale", Meaning::kScale},
    {"lora.int_id", Meaning::kIgnored},
    {"lora.lora_int_id", Meaning::kIgnored},
    {"bot_task", Meaning::kIgnored},
    {"flow_shift", Meaning::kIgnored},
    {"generator_device", Meaning::kIgnored},
    {"layers", Meaning::kIgnored},
    {"modalities", Meaning::kIgnored},
    {"return_stage_metrics", Meaning::kIgnored},
    {"system_prompt", Meaning::kIgnored},
    {"use_system_prompt", Meaning::kIgnored},
    {"vae_use_slicing", Meaning::kIgnored},
    {"vae_use_tiling", Meaning::kIgnored},
};
constexpr const char* kVllmOmniContainers[] = {"extra_params"};

// The names of its API for stable-diffusion-webui, then those of its native API, which <sd_cpp_extra_args> contains.
constexpr ClientField kSdCppFields[] = {
    {"width", Meaning::kSide, "width"},
    {"height", Meaning::kSide, "height"},
    {"steps", Meaning::kField, "num_inference_steps"},
    {"cfg_scale", Meaning::kField, "guidance_scale"},
    {"batch_size", Meaning::kField, "n"},
    {"sampler_name", Meaning::kField, "sampler"},
    {"lora", Meaning::kAdapters},
    {"init_images", Meaning::kPicture},
    {"extra_images", Meaning::kPicture},
    {"denoising_strength", Meaning::kIgnored},
    {"enable_hr", Meaning::kIgnored},
    {"hr_resize_x", Meaning::kIgnored},
    {"hr_resize_y", Meaning::kIgnored},
    {"hr_scale", Meaning::kIgnored},
    {"hr_steps", Meaning::kIgnored},
    {"hr_upscaler", Meaning::kIgnored},
    {"inpainting_mask_invert", Meaning::kIgnored},
    {"scheduler", Meaning::kIgnored},
    {"batch_count", Meaning::kField, "n"},
    {"clip_skip", Meaning::kClipSkip, "clip_skip"},
    {"sample_params.sample_steps", Meaning::kField, "num_inference_steps"},
    {"sample_params.sample_method", Meaning::kField, "sampler"},
    {"sample_params.guidance.txt_cfg", Meaning::kField, "guidance_scale"},
    {"sample_params.guidance.distilled_guidance", Meaning::kField, "guidance_scale"},
    {"init_image", Meaning::kPicture},
    {"end_image", Meaning::kPicture},
    {"mask_image", Meaning::kPicture},
    {"control_image", Meaning::kPicture},
    {"ip_adapter_image", Meaning::kPicture},
    {"ref_images", Meaning::kPicture},
    {"control_frames", Meaning::kPicture},
    {"ad_model", Meaning::kIgnored},
    {"ad_negative_prompt", Meaning::kIgnored},
    {"ad_prompt", Meaning::kIgnored},
    {"auto_resize_ref_image", Meaning::kIgnored},
    {"cache_mode", Meaning::kIgnored},
    {"cache_option", Meaning::kIgnored},
    {"control_strength", Meaning::kIgnored},
    {"embed_image_metadata", Meaning::kIgnored},
    {"extra_ad_args", Meaning::kIgnored},
    {"fps", Meaning::kIgnored},
    {"high_noise_sample_params", Meaning::kIgnored},
    {"hires", Meaning::kIgnored},
    {"increase_ref_index", Meaning::kIgnored},
    {"ip_adapter_strength", Meaning::kIgnored},
    {"moe_boundary", Meaning::kIgnored},
    {"qwen_image_layers", Meaning::kIgnored},
    {"sample_params.custom_sigmas", Meaning::kIgnored},
    {"sample_params.eta", Meaning::kIgnored},
    {"sample_params.extra_sample_args", Meaning::kIgnored},
    {"sample_params.flow_shift", Meaning::kIgnored},
    {"sample_params.guidance.img_cfg", Meaning::kIgnored},
    {"sample_params.guidance.slg", Meaning::kIgnored},
    {"sample_params.scheduler", Meaning::kIgnored},
    {"sample_params.shifted_timestep", Meaning::kIgnored},
    {"scm_mask", Meaning::kIgnored},
    {"scm_policy_dynamic", Meaning::kIgnored},
    {"strength", Meaning::kIgnored},
    {"upscale_repeats", Meaning::kIgnored},
    {"vace_strength", Meaning::kIgnored},
    {"vae_tiling_params", Meaning::kIgnored},
    {"video_frames", Meaning::kIgnored},
};

}  // namespace

ClientTable ClientTableOf(ForeignClient client) {
  switch (client) {
    case ForeignClient::kSglang:
      return {kSglangFields, kSglangContainers};
    case ForeignClient::kVllmOmni:
      return {kVllmOmniFields, kVllmOmniContainers};
    case ForeignClient::kSdCpp:
      return {kSdCppFields, {}};
  }
  return {};
}

}  // namespace tessera::server
