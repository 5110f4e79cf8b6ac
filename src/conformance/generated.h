/* The conformance kit: random calls of an operator, smallest first, and the properties that every provider must have.
 *
 *   backward    the operator can be trained through
 *   reference   results and gradients equal those of the reference provider
 *   guards      nothing outside the outputs is written; NaN around the inputs reaches no result
 *   separate    a packed call equals one call per sample
 *   leak        other contents in one sample change no bit of another sample
 *   boundaries  a boundary list changed in place is read again, not remembered
 *   capacity    rows beyond the last sample come out 0 and change nothing
 *   strides     slices of a wider buffer give the same results
 *   recorded    what a recorded step reads from device memory is read there, at every replay
 *   repeat      the same call gives the same bits
 *   threads     two threads at once give the same bits
 *
 * Calls that the provider's own verify refuses are counted, not failed - but one that takes no call at all fails. */
#ifndef DT_CONFORMANCE_GENERATED_H
#define DT_CONFORMANCE_GENERATED_H

#include "conformance/op_case.h"

typedef enum dt_property {
    DT_PROPERTY_BACKWARD,
    DT_PROPERTY_REFERENCE,
    DT_PROPERTY_GUARDS,
    DT_PROPERTY_SEPARATE,
    DT_PROPERTY_LEAK,
    DT_PROPERTY_BOUNDARIES,
    DT_PROPERTY_CAPACITY,
    DT_PROPERTY_STRIDES,
    DT_PROPERTY_RECORDED,
    DT_PROPERTY_REPEAT,
    DT_PROPERTY_THREADS,
    DT_PROPERTIES
} dt_property;

const char *dtp_property_name(dt_property property);

typedef struct dt_kit_options {
    const char *provider;
    dt_dtype activation;
    uint64_t seed;
    int cases;          /* random calls an operator */
    const char *folder; /* where the smallest failing call is written as a case file; NULL = nowhere */
} dt_kit_options;

typedef struct dt_kit_report {
    dt_op op;
    int ran, refused;  /* calls */
    char refusal[256]; /* the first reason */
    bool failed[DT_PROPERTIES];
    char fault[DT_PROPERTIES][320]; /* of the smallest failing call */
    char written[512];              /* case file, "" when none */
    bool passed;
} dt_kit_report;

/* Runs the kit for one operator. DT_E_UNSUPPORTED for operators without generated calls. The provider's failures are in
 * the report; the status is for the check itself. */
dt_status dtp_check_generated(dt_exec *exec, dt_op op, const dt_kit_options *options, dt_kit_report *report,
                              dt_err *err);
/* Operators with generated calls. */
bool dtp_has_generated(dt_op op);

#endif
