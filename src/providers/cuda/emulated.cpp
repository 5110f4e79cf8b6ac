/* The whole plug-in compiled for emulation.hpp: its kernels run on the CPU. One translation unit, one emulated device.
 */
#ifndef DT_EMULATE
#error "this file is for the emulated check: define DT_EMULATE"
#endif
#include "providers/cuda/activation.cu"
#include "providers/cuda/attention.cu"
#include "providers/cuda/causal_conv1d.cu"
#include "providers/cuda/cross_entropy.cu"
#include "providers/cuda/decode.cu"
#include "providers/cuda/embedding.cu"
#include "providers/cuda/gdn.cu"
#include "providers/cuda/gdn_gates.cu"
#include "providers/cuda/gemm.cu"
#include "providers/cuda/linear.cu"
#include "providers/cuda/optimizer.cu"
#include "providers/cuda/provider.cu"
#include "providers/cuda/rms_norm.cu"
#include "providers/cuda/rms_norm_gated.cu"
#include "providers/cuda/rope.cu"
#include "providers/cuda/rows.cu"
