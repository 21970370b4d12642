// From the CUDA kernel of an operator to its reference composition (kernels/reference.h), for arguments that the kernel
// does not take.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace tessera::kernels::cuda {

template <auto kKernel>
struct ReferenceOf;

// `name` is that of the operator whose kernel for CUDA is kKernel.
template <typename Result, typename... Args, Result (*kKernel)(Args...)>
struct ReferenceOf<kKernel> {
  static Result Call(const char* name, Args... args) {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Result(Args...)>();
    // Kernels of CompositeExplicitAutograd stand in the table of every back end without one of its own, as this one is.
    return handle.redispatch(c10::DispatchKeySet(c10::DispatchKey::Meta), std::forward<Args>(args)...);
  }
};

}  // namespace tessera::kernels::cuda
