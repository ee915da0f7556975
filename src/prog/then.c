/* What may follow a sum part by part: one rule for who says it (src/lower) and who proves it. */
#include "impl.h"

const char *prog_follows_not(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, enum prog_then how)
{
	if (r->op != CMD_COLL || r->lane != c->lane)
		return "what is before it is no collective of its lane";
	const struct prog_coll *red = &p->coll[r->id];
	const struct prog_kern *k = &p->kern[c->id];
	const struct prog_opnd *sum = &p->opnd[r->opnd + 1], *o = &p->opnd[c->opnd];
	bool own = red->kind == COLL_reduce_scatter, reads = false, more = false;
	if ((red->kind != COLL_all_reduce && !own) || red->nin != 1)
		return "what is before it is no all_reduce or reduce_scatter of one array";
	if (k->id != KERN_gen || !k->block || k->nin > 60 || !k->nout)
		return "its tiles are not parts of arrays";
	int64_t e = dtype_info[red->dtype].bytes, n = red->outer * red->inner / e, all = 0;
	for (int i = 0; i < k->nin + k->nout; i++)
		all = MAX(all, prog_view_count(&k->v[i]) / (i < k->nin ? 1 : k->times));
	for (int i = 0; i < k->nin; i++)
		if (!prog_same_opnd(&o[i], sum)) {
			if (o[i].buf == sum->buf)
				return "it reads the storage of the sum in another way";
			more |= p->buf[o[i].buf].kind != BUF_CONST;
		} else {
			reads = true;
			if (k->v[i].dtype != red->dtype || prog_view_count(&k->v[i]) != n || k->v[i].off || !prog_view_dense(&k->v[i]))
				return "it reads the sum in another type or order";
		}
	if (!reads)
		return "it does not read the sum";
	if (n != all)
		return "the sum is not its largest array";
	if (k->times > 1 && (!own || k->nout != 1))
		return "it makes several times the same";
	if (how == THEN_all && n > k->block && k->block * e % 64)
		return "parts that lie elsewhere end within a line";
	if (how != THEN_all || own)
		return NULL;
	if (more)
		return "what one device makes for all is made of more than the sum and constants";
	if (k->nout != 1 || prog_view_count(&k->v[k->nin]) != n || dtype_info[k->v[k->nin].dtype].bytes != e || PROG_UNIT % (k->block * e))
		return "what one device makes for all is not like the sum";
	return NULL;
}

bool prog_then_over(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, uint32_t i)
{
	const struct prog_coll *red = &p->coll[r->id];
	const struct prog_kern *k = &p->kern[c->id];
	const struct prog_view *v = &k->v[k->nin + i];
	int64_t es = dtype_info[red->dtype].bytes, n = red->outer * red->inner / es;
	if (v->off || !prog_view_dense(v) || dtype_info[v->dtype].bytes != es)
		return false;
	if (red->kind == COLL_all_reduce)
		return prog_view_count(v) == n;
	return red->outer == 1 && k->times > 1 && k->times == group_size(&p->group[red->group], 0) && prog_view_count(v) == n * k->times;
}
