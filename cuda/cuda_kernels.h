// The fat binary that nvcc made of gather_scatter.cu (cuda/CMakeLists.txt): code for sm_80 and
// sm_90, and PTX for later architectures.
#pragma once

namespace larder {

extern "C" const unsigned long long larder_cuda_kernels[];

}  // namespace larder
