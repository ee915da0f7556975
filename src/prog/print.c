/* The text form (docs/prog.md): one table row a line, commands as an indented tree. */
#include "impl.h"

static void quote(struct str *s, const char *t)
{
	str_add(s, "\"");
	for (const unsigned char *c = (const unsigned char *)(t ? t : ""); *c; c++) {
		if (*c == '"' || *c == '\\')
			str_addf(s, "\\%c", *c);
		else if (*c < 32 || *c == 127)
			str_addf(s, "\\x%02x", *c);
		else
			str_addn(s, (const char *)c, 1);
	}
	str_add(s, "\"");
}

static void hex(struct str *s, const void *p, size_t n)
{
	static const char digit[] = "0123456789abcdef";
	const uint8_t *c = p;
	for (size_t i = 0; i < n; i++) {
		char two[2] = {digit[c[i] >> 4], digit[c[i] & 15]};
		str_addn(s, two, 2);
	}
}

static void list(struct str *s, int64_t n, const int64_t *v)
{
	str_add(s, "[");
	for (int64_t i = 0; i < n; i++)
		str_addf(s, "%s%ld", i ? "," : "", (long)v[i]);
	str_add(s, "]");
}

static const char *dtype(unsigned dt)
{
	return dtype_info[dt].name;
}

static void view(struct str *s, const struct prog_view *v)
{
	str_add(s, dtype(v->dtype));
	list(s, v->rank, v->dim);
	int64_t want = 1;
	bool plain = true;
	for (int d = v->rank - 1; d >= 0; d--) {
		plain &= v->stride[d] == want;
		want *= v->dim[d];
	}
	if (!plain) {
		str_add(s, ":");
		list(s, v->rank, v->stride);
	}
	if (v->off)
		str_addf(s, "@%ld", (long)v->off);
}

static void views(struct str *s, uint32_t nin, uint32_t nout, const struct prog_view *v)
{
	str_add(s, " (");
	for (uint32_t i = 0; i < nin + nout; i++) {
		if (i == nin)
			str_add(s, ") -> (");
		else if (i)
			str_add(s, ", ");
		view(s, &v[i]);
	}
	str_add(s, nout ? ")" : ") -> ()");
}

static size_t imm_len(const uint8_t *imm)
{
	size_t n = 16;
	while (n > 1 && !imm[n - 1])
		n--;
	return n;
}

static void expr(struct str *s, const struct prog_expr *x)
{
	str_add(s, " expr (");
	for (int i = 0; i < x->nin; i++)
		str_addf(s, "%s%s", i ? ", " : "", dtype(x->in_type[i]));
	str_add(s, ") {");
	for (int i = 0; i < x->n; i++) {
		const struct prog_ins *n = &x->ins[i];
		str_addf(s, "%s %%%d = %s %s", i ? ";" : "", x->nin + i,
		         n->fn == EXPR_IMM ? "imm" : n->fn == EXPR_ROUND ? "round" : n->fn == EXPR_LOOK ? "look" : elem_info[n->fn].name, dtype(n->from));
		for (int k = 0; k < prog_ins_nin(n->fn); k++)
			str_addf(s, " %%%d", n->src[k]);
		str_addf(s, " -> %s", dtype(n->to));
		if (n->fn >= ELEM_COUNT) {
			str_add(s, " ");
			hex(s, n->imm, imm_len(n->imm));
		}
	}
	str_add(s, " } (");
	for (int i = 0; i < x->nout; i++)
		str_addf(s, "%s%%%d", i ? ", " : "", x->out[i]);
	str_add(s, ")");
}

static void arg(struct str *s, const char *what, uint32_t i, const struct prog_arg *a)
{
	str_addf(s, "%s %u %s", what, i, dtype(a->dtype));
	list(s, a->rank, a->dim);
	if (a->global_dim) {
		str_add(s, " global ");
		list(s, a->rank, a->global_dim);
	}
	str_addf(s, " bytes %ld", (long)a->bytes);
	if (a->alias != -1)
		str_addf(s, " alias %d", a->alias);
	if (a->nsharding) {
		str_add(s, " sharding ");
		hex(s, a->sharding, a->nsharding);
	}
	if (a->memory_kind) {
		str_add(s, " memory ");
		quote(s, a->memory_kind);
	}
	if (a->layout) {
		str_add(s, " layout ");
		quote(s, a->layout);
	}
	str_add(s, "\n");
}

static void kern(struct str *s, uint32_t i, const struct prog_kern *k)
{
	str_addf(s, "kern %u %s", i, prog_kern_name[k->id]);
	views(s, k->nin, k->nout, k->v);
	if (k->nattr) {
		str_add(s, " attr ");
		list(s, k->nattr, k->attr);
	}
	if (imm_len(k->imm) > 1 || k->imm[0] || k->id == KERN_fill) {
		str_add(s, " imm ");
		hex(s, k->imm, imm_len(k->imm));
	}
	if (k->code >= 0)
		str_addf(s, " code %d", k->code);
	if (k->tiles)
		str_addf(s, " tiles %ld", (long)k->tiles);
	if (k->block)
		str_addf(s, " of %ld", (long)k->block);
	if (k->times > 1)
		str_addf(s, " times %ld", (long)k->times);
	if (k->open)
		str_add(s, " open");
	if (k->flops)
		str_addf(s, " flops %ld", (long)k->flops);
	if (k->bytes)
		str_addf(s, " bytes %ld", (long)k->bytes);
	if (k->expr)
		expr(s, k->expr);
	str_add(s, "\n");
}

static void coll(struct str *s, uint32_t i, const struct prog_coll *c)
{
	str_addf(s, "coll %u %s %s n %u algo %s", i, prog_coll_name[c->kind], dtype(c->dtype), c->nin, prog_algo_name[c->algo]);
	if (c->kind != COLL_permute)
		str_addf(s, " group %u", c->group);
	if (prog_has_links(c))
		str_addf(s, " pairs %u", c->pairs);
	str_addf(s, " redop %s outer %ld inner %ld", redop_name[c->redop], (long)c->outer, (long)c->inner);
	if (c->outer2 || c->inner2)
		str_addf(s, " to %ld %ld", (long)c->outer2, (long)c->inner2);
	if (c->hops)
		str_addf(s, " hops %u", c->hops);
	if (c->nbox) {
		str_add(s, " boxes ");
		list(s, c->nbox, c->box);
	}
	if (c->slices)
		str_addf(s, " slices %ld of %ld", (long)c->slices, (long)c->row);
	if (c->expr)
		expr(s, c->expr);
	str_add(s, "\n");
}

static void opnd(struct str *s, const struct prog_opnd *o)
{
	str_addf(s, "b%u", o->buf);
	if (o->off)
		str_addf(s, "%+ld", (long)o->off);
	for (int k = 0; k < 2; k++)
		if (o->reg[k])
			str_addf(s, "+r%u*%ld", o->reg[k], (long)o->mul[k]);
}

static void opnds(struct str *s, const struct prog *p, const struct prog_cmd *c, uint32_t nin)
{
	str_add(s, " (");
	for (uint32_t i = 0; i < c->nopnd; i++) {
		if (i == nin)
			str_add(s, ") -> (");
		else if (i)
			str_add(s, ", ");
		opnd(s, &p->opnd[c->opnd + i]);
	}
	str_add(s, nin < c->nopnd ? ")" : ") -> ()");
}

void print_cmd(struct str *s, const struct prog *p, const struct prog_cmd *c)
{
	switch (c->op) {
	case CMD_KERN:
		str_addf(s, "%s %u %s", c->imm == THEN_all ? "then all" : c->imm ? "then" : "kern", c->id, prog_kern_name[p->kern[c->id].id]);
		opnds(s, p, c, p->kern[c->id].nin);
		break;
	case CMD_COLL:
		str_addf(s, "coll %u %s", c->id, prog_coll_name[p->coll[c->id].kind]);
		opnds(s, p, c, coll_nin(&p->coll[c->id]));
		break;
	case CMD_CUSTOM:
		str_addf(s, "custom %u ", c->id);
		quote(s, p->custom[c->id].target);
		opnds(s, p, c, p->custom[c->id].nin);
		break;
	case CMD_SET: str_addf(s, "set r%u = %ld", c->reg[0], (long)c->imm); break;
	case CMD_ADD: str_addf(s, "add r%u = r%u + r%u %+ld", c->reg[0], c->reg[1], c->reg[2], (long)c->imm); break;
	case CMD_MUL: str_addf(s, "mul r%u = r%u * %ld", c->reg[0], c->reg[1], (long)c->imm); break;
	case CMD_MIN: str_addf(s, "min r%u = r%u, %ld", c->reg[0], c->reg[1], (long)c->imm); break;
	case CMD_MAX: str_addf(s, "max r%u = r%u, %ld", c->reg[0], c->reg[1], (long)c->imm); break;
	case CMD_LD:
		str_addf(s, "ld r%u = %s ", c->reg[0], dtype(c->dtype));
		opnd(s, &p->opnd[c->opnd]);
		break;
	case CMD_ST:
		str_addf(s, "st %s ", dtype(c->dtype));
		opnd(s, &p->opnd[c->opnd]);
		str_addf(s, " = r%u %+ld", c->reg[1], (long)c->imm);
		break;
	case CMD_TABLE: str_addf(s, "table r%u = %ld", c->reg[0], (long)c->imm); break;
	case CMD_LOOP:
		if (c->imm >= 0)
			str_addf(s, "loop r%u < %ld", c->reg[0], (long)c->imm);
		else
			str_addf(s, "loop r%u < r%u", c->reg[0], c->reg[1]);
		break;
	case CMD_WHILE: str_addf(s, "while r%u", c->reg[0]); break;
	case CMD_CASE: str_addf(s, "case r%u", c->reg[0]); break;
	case CMD_MARK: str_addf(s, "mark %ld", (long)c->imm); break;
	case CMD_AWAIT: str_addf(s, "await %ld", (long)c->imm); break;
	case CMD_LEND:
		str_addf(s, "lend %u (", c->id);
		opnd(s, &p->opnd[c->opnd]);
		str_add(s, ")");
		break;
	case CMD_NEXT:
		str_addf(s, c->imm ? "next %u" : "next %u by 0", c->id);
		opnds(s, p, c, 1);
		break;
	case CMD_BACK: str_addf(s, "back %u", c->id); break;
	case CMD_WAIT: str_addf(s, c->imm ? "wait %u but 1" : "wait %u", c->id); break;
	}
	if (c->lane)
		str_addf(s, " lane %u", c->lane);
	if (c->site)
		str_addf(s, " site %u", c->site);
}

static void block(struct str *s, const struct prog *p, uint32_t b, int depth);

static void cmd(struct str *s, const struct prog *p, const struct prog_cmd *c, int depth)
{
	str_addf(s, "%*s", depth * 2, "");
	print_cmd(s, p, c);
	for (uint32_t i = 0; i < c->nblock; i++)
		block(s, p, p->sub[c->block + i], depth);
	str_add(s, "\n");
}

/* " {", the commands, "}" at the depth of the command it belongs to. */
static void block(struct str *s, const struct prog *p, uint32_t b, int depth)
{
	str_add(s, " {\n");
	for (uint32_t i = 0; i < p->block[b].n; i++)
		cmd(s, p, &p->block[b].cmd[i], depth + 1);
	str_addf(s, "%*s}", depth * 2, "");
}

void prog_print(struct str *s, const struct prog *p)
{
	static const char *const kind[] = {"arg", "out", "temp", "const", "lent"};
	str_add(s, "prog ");
	quote(s, p->name);
	str_addf(s, " devices %d registers %u zone %ld", p->ndev, p->nreg, (long)p->zone);
	if (p->far)
		str_addf(s, " far %ld", (long)p->far);
	str_addf(s, " flops %ld fingerprint %016lx comm %016lx\n", (long)p->flops, (unsigned long)p->fingerprint, (unsigned long)p->comm_hash);
	for (uint32_t i = 0; i < p->nsite; i++) {
		str_addf(s, "site %u ", i);
		quote(s, p->site[i].text);
		if (p->site[i].scope) {
			str_add(s, " in ");
			quote(s, p->site[i].scope);
		}
		str_add(s, "\n");
	}
	for (uint32_t i = 0; i < p->narg; i++)
		arg(s, "arg", i, &p->arg[i]);
	for (uint32_t i = 0; i < p->nres; i++)
		arg(s, "res", i, &p->res[i]);
	for (uint32_t i = 0; i < p->nbuf; i++) {
		const struct prog_buf *b = &p->buf[i];
		str_addf(s, "buf %u %s", i, kind[b->kind]);
		if (b->kind == BUF_LENT)
			str_addf(s, " %u", b->index);
		str_addf(s, b->kind < BUF_TEMP ? " %ld" : " at %ld", b->kind < BUF_TEMP ? (long)b->index : (long)b->off);
		str_addf(s, " size %ld", (long)b->size);
		if ((b->kind == BUF_OUT || b->kind == BUF_TEMP) && b->alias >= 0)
			str_addf(s, " alias %d", b->alias);
		str_add(s, b->bits & BUF_PEER ? " peer\n" : "\n");
	}
	if (p->ndata) {
		str_addf(s, "data %ld", (long)p->ndata);
		for (int64_t i = 0; i < p->ndata; i += 32) {
			str_add(s, "\n  ");
			hex(s, (char *)p->data + i, (size_t)MIN(32, p->ndata - i));
		}
		str_add(s, "\n");
	}
	for (uint32_t i = 0; i < p->ntable; i++) {
		str_addf(s, "table %u ", i);
		list(s, p->ndev, p->table[i].v);
		str_add(s, "\n");
	}
	for (uint32_t i = 0; i < p->ngroup; i++) {
		const struct prog_group *g = &p->group[i];
		str_addf(s, "group %u %d %d ", i, g->nrow, g->ncol);
		list(s, (int64_t)g->nrow * g->ncol, g->id);
		str_add(s, "\n");
	}
	for (uint32_t i = 0; i < p->ncode; i++) {
		str_addf(s, "code %u ", i);
		quote(s, p->code[i].symbol);
		str_addf(s, " key %016lx\n", (unsigned long)p->code[i].key);
	}
	for (uint32_t i = 0; i < p->nkern; i++)
		kern(s, i, &p->kern[i]);
	for (uint32_t i = 0; i < p->ncoll; i++)
		coll(s, i, &p->coll[i]);
	for (uint32_t i = 0; i < p->ncustom; i++) {
		const struct prog_custom *c = &p->custom[i];
		str_addf(s, "custom %u ", i);
		quote(s, c->target);
		str_addf(s, " api %d%s", c->api, c->effect ? " effect" : "");
		if (c->ndict) {
			str_add(s, " dict ");
			hex(s, c->dict, c->ndict);
		}
		views(s, c->nin, c->nout, c->v);
		str_add(s, "\n");
	}
	str_add(s, "run");
	if (p->nblock)
		block(s, p, 0, 0);
	str_add(s, "\n");
}
