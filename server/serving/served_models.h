// ServedModels holds the served models in the order of the configuration. Not thread-safe: its owner guards it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/served_model.h"

namespace tessera::server {

class ServedModels {
 public:
  using Model = std::shared_ptr<const ServedModel>;

  const std::vector<Model>& all() const { return models_; }

  // Null if the model is not served.
  Model Find(const std::string& id) const {
    const auto found = std::ranges::find(models_, id, IdOf);
    return found == models_.end() ? nullptr : *found;
  }

  // Replaces the model of the same id, or appends it.
  void Put(ServedModel model) {
    const auto found = std::ranges::find(models_, model.id, IdOf);
    auto put = std::make_shared<const ServedModel>(std::move(model));
    if (found == models_.end()) {
      models_.push_back(std::move(put));
    } else {
      *found = std::move(put);
    }
  }

  ServedModels TakeAll() { return std::exchange(*this, {}); }

 private:
  static const std::string& IdOf(const Model& model) { return model->id; }

  std::vector<Model> models_;
};

}  // namespace tessera::server
