/* The whole plug-in compiled for emulation.hpp: its kernels run on the CPU. One translation unit, one emulated device.
 */
#ifndef DT_EMULATE
#error "this file is for the emulated check: define DT_EMULATE"
#endif
#include "providers/cuda/causal_conv1d.cu"
#include "providers/cuda/gdn.cu"
#include "providers/cuda/provider.cu"
