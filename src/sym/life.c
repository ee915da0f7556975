/* What a process of a job hears of another: the keys that it writes, why it writes none, and its end. */
#include "join.h"

struct err *sym_joins(struct sym_world *w, const struct kv *kv, int who, double until, struct sym_coming *c)
{
	int life = atomic_load(&w->process[who].life);

	if (life != SYM_HERE) {
		TRY(sym_gave_up(kv, who));
		return ERR(UNAVAILABLE, "process %d (pid %d) has %s while it joined the job", who, w->process[who].pid, life == SYM_LEFT ? "left" : "died");
	}
	return sym_coming(kv, who, until, c);
}

struct err *sym_fetch(struct sym_world *w, const struct kv *kv, const char *key, int who, double until, struct str *out)
{
	struct sym_coming c = { 0 };
	struct err *why = NULL;

	for (;;) {
		struct err *e = kv->get(kv->user, key, why ? 1 : sym_slice(&c, until), out);
		bool there = !e || (e->code != ERR_DEADLINE && e->code != ERR_NOT_FOUND);
		if (there || why) {
			err_free(there ? why : e);
			return !there ? why : e ? err_wrap(e, "joining the job, process %d", kv->process) : NULL;
		}
		err_free(e);
		why = sym_joins(w, kv, who, until, &c);          /* it may have ended after it had done its part: a last look */
	}
}

void sym_gone(struct sym_world *w, int proc, enum sym_life how)
{
	struct sym_process *p = &w->process[proc];
	struct join *j = w->join;
	int here = SYM_HERE;

	if (!atomic_compare_exchange_strong(&p->life, &here, how))
		return;
	int none = 0;
	if (how == SYM_DEAD)
		atomic_compare_exchange_strong(&w->died, &none, proc + 1);
	pthread_mutex_lock(&j->lock);
	int pid = p->pid;
	pthread_mutex_unlock(&j->lock);
	log_line(how == SYM_DEAD ? LOG_WARN : LOG_INFO, "process %d (pid %d) %s", proc, pid, how == SYM_DEAD ? "has died" : "has left the job");
	int n = atomic_load(&w->gone);
	while (n >= 0 && !atomic_compare_exchange_weak(&w->gone, &n, n + 1)) { }
	for (int i = 0; i < w->nlocal && atomic_load(&j->joined); i++)
		sym_ring(w, w->first + i);
}
