// Lists the layouts on which a model can run.
#pragma once

#include <vector>

#include "models/families/family_description.h"
#include "parallel/plan/layout.h"

namespace tessera {

// Returns every axis alone, in several sizes, and products of two and three axes. Their steps are whole (no patches).
inline std::vector<const char*> WholeLayouts() {
  return {"cfg=2",
          "ulysses=2",
          "ulysses=4",
          "ring=2",
          "ring=3",
          "ring=5",
          "ring=8",
          "tensor=2",
          "tensor=4",
          "pipe=2",
          "pipe=3",
          "cfg=2,ulysses=2",
          "cfg=2,ring=2",
          "cfg=2,tensor=2",
          "cfg=2,pipe=2",
          "ring=2,ulysses=2",
          "ring=3,ulysses=2",
          "ulysses=2,tensor=2",
          "ring=2,tensor=2",
          "pipe=2,ring=2",
          "pipe=2,ulysses=2",
          "pipe=2,tensor=2",
          "cfg=2,ring=2,ulysses=2",
          "cfg=2,pipe=2,tensor=2",
          "pipe=2,ring=2,ulysses=2",
          "ring=2,ulysses=2,tensor=2"};
}

// Returns the layouts in `texts` that are valid for the model.
inline std::vector<parallel::Layout> ValidLayouts(const std::vector<const char*>& texts,
                                                  const models::FamilyDescription& model) {
  std::vector<parallel::Layout> valid;
  for (const char* text : texts) {
    const parallel::Layout layout = *parallel::ParseLayout(text);
    const parallel::LayoutModel judged{
        .heads = static_cast<int>(model.heads), .blocks = static_cast<int>(model.blocks), .max_cfg_branches = 2};
    if (parallel::CheckLayout(layout, judged).ok()) valid.push_back(layout);
  }
  return valid;
}

}  // namespace tessera
