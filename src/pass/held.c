/* What memory a device needs for a compiled program, and the temporaries that are alive when it needs most. */
#include "passes.h"

enum { MOST = 8 };

static void alive(struct str *s, const struct pass_account *t)
{
	int64_t rest = 0;
	if (!t->live.nlike)
		return;
	str_add(s, "  temporaries alive at the peak: ");
	pass_add_bytes(s, (double)t->live.most);
	str_add(s, "\n");
	for (size_t i = 0; i < t->live.nlike; i++) {
		const struct prog_like *x = &t->live.like[i];
		if (i >= MOST) {
			rest += x->bytes * x->n;
			continue;
		}
		struct str size = {0};
		pass_add_like(&size, x);
		str_addf(s, "    %-14s%s\n", size.p, x->site);
		str_free(&size);
	}
	if (rest) {
		str_add(s, "    and ");
		pass_add_bytes(s, (double)rest);
		str_add(s, " in smaller ones\n");
	}
}

void pass_add_memory(struct str *s, const struct pass_account *t)
{
	str_add(s, "arguments ");
	pass_add_bytes(s, (double)t->arg);
	str_add(s, ", results ");
	pass_add_bytes(s, (double)t->res);
	str_add(s, " (in the storage of donated arguments: ");
	pass_add_bytes(s, (double)t->shared);
	str_add(s, "), temporary ");
	pass_add_bytes(s, (double)t->p->zone);
	str_add(s, ", constants ");
	pass_add_bytes(s, (double)t->p->ndata);
	if (t->p->needs) {
		str_add(s, ", what kernels and collectives work in ");
		pass_add_bytes(s, (double)(pass_account_bytes(t) - pass_account_said(t)));
	}
}

void pass_add_needs(struct str *s, const struct pass_account *t)
{
	pass_add_bytes(s, (double)pass_account_bytes(t));
	str_add(s, t->p->needs ? " at most" : ", and what kernels and collectives work in");
}

void pass_explain_memory(struct str *s, const struct ir_module *m, const struct pass_account *t)
{
	const struct prog *p = t->p;
	str_add(s, "memory of a device: ");
	pass_add_needs(s, t);
	str_add(s, "\n  ");
	pass_add_memory(s, t);
	str_add(s, "\n");
	alive(s, t);
	for (uint32_t i = 0; i < p->narg; i++)
		if (m->arg[i].donor && p->arg[i].alias < 0)
			str_addf(s, "  argument %u is donated, but no result can take its storage\n", i);
}
