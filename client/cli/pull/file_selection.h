// Selects the files of a repository that a pipeline needs. Repositories hold the same weights several times: as one
// file for other programs at the root, in other formats, and in other precisions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/pull/hub_listing.h"

namespace tessera::client {

// A model_index.json: the class of the pipeline and the folders of its components.
struct PipelineIndex {
  std::string class_name;
  std::vector<std::string> components;
};

absl::StatusOr<PipelineIndex> ParsePipelineIndex(std::string_view json);

struct FileSelection {
  std::vector<HubFile> files;
  std::vector<std::string> foreign;  // components whose only weights are PyTorch pickles, which must be converted
};

// Returns the licence, the model card and model_index.json, and of each component its small files and its weights once,
// as models/weights/weight_folder.h looks for them: safetensors of full precision, else the fp16 or bf16 variant, else
// pickles. If `only` names components, only theirs are returned, without model_index.json, because the folder is then
// no whole model. NOT_FOUND names a component of which the repository has nothing, INVALID_ARGUMENT one that the
// pipeline does not have.
absl::StatusOr<FileSelection> SelectFiles(const HubListing& listing, const PipelineIndex& index,
                                          const std::vector<std::string>& only = {});

}  // namespace tessera::client
