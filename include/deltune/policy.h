/* The founding policy: who serves an operator on a device family where a third party is known to replace it.
 *
 *   situation                                        what is installed                          packed calls
 *   device not affected                              nothing is touched                         as before
 *   owner available, family supported by it          the owner's original (restore)             yes
 *   family that the owner lacks, third party there   the third party's, one call per sample     yes, slow
 *   owner missing                                    what is there stays; a fallback that       error at the call
 *                                                    cannot pack says so at the call
 *   owner present but broken                         what is there stays, one warning           checked at the call
 *
 * Source: modelscope/ms-swift pull requests 9746 and 9783; docs/dispatch.md. */
#ifndef DELTUNE_POLICY_H
#define DELTUNE_POLICY_H

#include <deltune/dispatch.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_soc_family {
    DT_SOC_OTHER = 0,
    DT_SOC_ASCEND910,    /* first generation: no operator of any known provider runs there */
    DT_SOC_ASCEND910B,   /* Atlas A2 */
    DT_SOC_ASCEND910_93, /* Atlas A3 */
    DT_SOC_ASCEND950,    /* A5, "arch35" */
    DT_SOC_ASCEND310P
} dt_soc_family;

/* From the name the driver gives ("Ascend910B3"). An exact table, never a substring test; case does not matter. */
DT_API dt_soc_family dt_soc_family_of(const char *soc_name);

typedef struct dt_settle_request {
    size_t struct_size;
    dt_op op;
    dt_device_kind device;
    const char *soc_name;            /* of the device in use; NULL on devices without one */
    const dt_restore_policy *policy; /* the owner and where it may come from */
    const char *third_party;         /* provider that is wrapped on families the owner lacks; NULL: none */
} dt_settle_request;
#define DT_SETTLE_REQUEST .struct_size = sizeof(dt_settle_request)

typedef enum dt_settled { DT_SETTLED_UNTOUCHED, DT_SETTLED_OWNER, DT_SETTLED_PER_SAMPLE, DT_SETTLED_KEPT } dt_settled;

/* Applies the table to one slot. DT_SETTLED_KEPT is DT_OK too: it has warned, and calls are checked one by one. */
DT_API dt_status dt_ctx_settle(dt_ctx *ctx, const dt_settle_request *request, dt_settled *settled_out, dt_err *err);

#ifdef __cplusplus
}
#endif
#endif
