/* The source of dt_gdn_kernels, included once per instruction set with GDN_KERNELS naming the table. */
#include "providers/cpu/gdn_backward.h"
#include "providers/cpu/gdn_forward.h"
#include "providers/cpu/gdn_step_kernel.h"

const dt_gdn_kernels GDN_KERNELS = {
    .forward = gdn_forward_item,
    .backward = gdn_backward_item,
    .step = gdn_step_head,
};
