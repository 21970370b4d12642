// The functions of the CUDA plug-in's table, except for opening a device, as specified in kernels/device_runtime.h.
#pragma once

#include <string>

#include "kernels/device_runtime.h"

namespace tessera::kernels {

// Returns "13.0" for 13000.
std::string CudaVersionText(int version);

int FindCudaDevice(const std::string& name, std::string& problem) noexcept;
// The device must exist.
DeviceIdentity IdentifyCudaDevice(int device);
bool ReadCudaMemory(int device, DeviceMemory& memory) noexcept;
void ReleaseCudaCache(int device);
void LimitCudaMemory(int device, int64_t bytes);
bool CudaDeviceWorks(int device) noexcept;

DeviceMark* RecordCudaMark(int device);
bool IsCudaMarkReached(const DeviceMark& mark);
void WaitForCudaMark(const DeviceMark& mark);
double SecondsBetweenCudaMarks(const DeviceMark& from, const DeviceMark& to);
void DestroyCudaMark(DeviceMark* mark) noexcept;

c10::Allocator* CudaPinnedMemory();

bool BeginCudaCapture(int device);
DeviceGraph* EndCudaCapture(int device) noexcept;
int64_t CudaGraphBytes(const DeviceGraph& graph) noexcept;
void LaunchCudaGraph(DeviceGraph& graph);
void DestroyCudaGraph(DeviceGraph* graph) noexcept;
bool IsCudaCapturing(int device) noexcept;

std::string CudaCard(int device) noexcept;
void* CurrentCudaStream(int device);
void* SideCudaStream(int device);
void WaitForCudaStream(int device, void* stream, void* other);
const NcclApi* CudaNccl(std::string& problem) noexcept;

}  // namespace tessera::kernels
