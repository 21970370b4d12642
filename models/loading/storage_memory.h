// The memory of a storage that comes and goes while tensors keep sharing the storage.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace tessera::models {

// Views that autograd saved share the storage, so they are valid only while it has memory. The memory is uninitialized.
inline void AllocateStorage(const at::Tensor& values, int64_t bytes) {
  c10::StorageImpl* storage = values.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(values.device().type())->allocate(static_cast<size_t>(bytes)));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

inline void FreeStorage(const at::Tensor& values) {
  c10::StorageImpl* storage = values.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, values.device()));
  storage->set_nbytes(0);
}

}  // namespace tessera::models
