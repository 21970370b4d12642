// Where the Hugging Face hub's tools keep the models that they download. Functions of the environment alone.
#pragma once

#include <string>

namespace tessera::base {

// Returns the value of an environment variable in which "~" stands for HOME; empty if it is not set.
std::string PathInEnvironment(const char* name);

// Returns the folder of the hub's tools, from the first of HF_HOME, XDG_CACHE_HOME and HOME that is set; empty if none
// is.
std::string HubHomeFolder();

// Returns the cache's folder, from the first of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME
// that is set; empty if none is.
std::string HubCacheFolder();

// Returns the folder of the model "ORG/NAME" in the cache.
std::string HubModelFolder(const std::string& cache, const std::string& name);

}  // namespace tessera::base
