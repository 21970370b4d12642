// Calls an operator's reference composition (kernels/reference/operators.h) from its CUDA kernel, for arguments that
// the kernel does not support.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace tessera::kernels::cuda {

template <auto kKernel>
struct ReferenceOf;

// `name` is the name of the operator whose CUDA kernel is kKernel.
template <typename Result, typename... Args, Result (*kKernel)(Args...)>
struct ReferenceOf<kKernel> {
  static Result Call(const char* name, Args... args) {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Result(Args...)>();
    // CompositeExplicitAutograd kernels are in the table of every back end without its own kernel; Meta is one of
    // these.
    return handle.redispatch(c10::DispatchKeySet(c10::DispatchKey::Meta), std::forward<Args>(args)...);
  }
};

}  // namespace tessera::kernels::cuda
