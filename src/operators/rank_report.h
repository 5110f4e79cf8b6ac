/* What ran, over all ranks of a job: rank 0 says it once, and every rank that differs says where. */
#ifndef DT_OPERATORS_RANK_REPORT_H
#define DT_OPERATORS_RANK_REPORT_H

/* fingerprints[world]: dt_ctx_fingerprint of each rank. Logs at INFO what this rank has to say. */
void dtp_log_ranks(int rank, int world, const char *const *fingerprints);

#endif
