/* SIGINT and SIGTERM during training: the first asks the loop to finish its step, save and leave; the second ends the
 * process at once (a checkpoint being written then stays a tmp- folder that nothing reads). */
#ifndef DT_TRAIN_STOP_H
#define DT_TRAIN_STOP_H

/* Process-wide, because signals are. Handlers are put back by dtp_stop_uninstall. */
void dtp_stop_install(void);
void dtp_stop_uninstall(void);
/* The signal that was received, or 0. */
int dtp_stop_requested(void);

#endif
