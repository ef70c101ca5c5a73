// The fat binary of gather_scatter.cu, as nvcc made it (cuda/CMakeLists.txt): sm_80, sm_90, and PTX
// for what comes after.
#pragma once

namespace larder {

extern "C" const unsigned long long larder_cuda_kernels[];

}  // namespace larder
