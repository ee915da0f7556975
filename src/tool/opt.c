/* rondo opt: a program's text, as read or after a pass. */
#include "tool.h"
#include "../spmd/spmd.h"

static const char *pass, *only, *rewrite, *rewrites, *tier, *devices, *hosts, *list, *verify, *no_loc, *ops, *axes, *propagate, *save;

static const struct opt opts[] = {
	{"p", "PASS", "run the passes up to this one; without it the program is printed as it is read", &pass},
	{"V", NULL, "print nothing, only verify", &verify},
	{"L", NULL, "leave locations out", &no_loc},
	{"axes", NULL, "print each operation's rule of dimensions instead (docs/ir.md)", &axes},
	{"propagate", NULL, "let shardings flow to all values (src/spmd/propagate.c), then print", &propagate},
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"hosts", "N", "as many hosts, which have equal parts of the devices one after the other (1)", &hosts},
	{"save", "BYTES", "as if memory were so short: what loops keep for their gradients is made again (0)", &save},
	{"tier", "T", "ref, gen or auto", &tier},
	{"ops", NULL, "list the operations (docs/ir.md)", &ops},
	{"list", NULL, "list the passes in order", &list},
	{"only", "PASS", "run this pass alone, on a program as the passes before it leave one", &only},
	{"rewrite", "NAME", "apply this rewrite of pass canon alone, wherever it applies", &rewrite},
	{"rewrites", NULL, "list the rewrites", &rewrites},
};

/* Rows of a table, as docs/ir.md has it. */
static void print_ops(void)
{
	printf("| operation | operands | results | attributes | flags | meaning |\n| --- | --- | --- | --- | --- | --- |\n");
	for (int k = 1; k < IR_COUNT; k++) {
		const struct ir_kind_info *i = ir_info(k);
		static const struct { unsigned bit; const char *name; } flags[] = {
			{IR_PURE, "pure"}, {IR_ELEM, "elem"}, {IR_VIEW, "view"}, {IR_COLL, "coll"}, {IR_EFFECT, "effect"}, {IR_BARRIER, "barrier"},
			{IR_CUSTOM, "custom"},
		};
		char nin[16] = "any", nout[16] = "any";
		if (i->nin >= 0)
			snprintf(nin, sizeof nin, "%d", i->nin);
		if (i->nout >= 0)
			snprintf(nout, sizeof nout, "%d", i->nout);
		printf("| %s | %s | %s |", i->name, nin, nout);
		for (int a = 0; a < i->nattr; a++)
			printf(" %s:%c", ir_at_name[i->attr[a].name], i->attr[a].kind);
		printf(i->nattr ? " |" : "  |");
		for (size_t f = 0; f < NELEM(flags); f++)
			if (i->flags & flags[f].bit)
				printf(" %s", flags[f].name);
		printf(" | ");
		for (const char *c = i->meaning; *c; c++)
			printf(*c == '|' ? "\\|" : "%c", *c);
		printf(" |\n");
	}
}

/* One line an operation: its kind, types and rule. */
static void print_axes(struct str *s, const struct ir_module *m)
{
	struct arena a;
	arena_init(&a);
	for (size_t f = 1; f < m->fn.n; f++)
		for (size_t i = 0; i < m->fn.p[f]->op.n; i++) {
			const struct ir_fn *fn = m->fn.p[f];
			const struct ir_op *o = &fn->op.p[i];
			str_addf(s, "%s (", ir_info(o->kind)->name);
			for (uint32_t k = 0; k < o->nin + o->nout; k++) {
				str_add(s, k == o->nin ? ") -> (" : k ? ", " : "");
				ir_print_type(s, m, fn->val.p[k < o->nin ? ir_in(fn, o, k) : o->out + k - o->nin].type);
			}
			str_add(s, o->nout ? ") " : ") -> () ");
			ir_axes_print(s, ir_axes_of(&a, m, fn, o));
			str_add(s, "\n");
			arena_reset(&a);
		}
	arena_fini(&a);
}

static struct err *apply(struct ir_module *m, const char *name)
{
	const char *n, *from, *to, *names[256];
	size_t count = 0;
	for (int i = 0; (n = pass_rewrite_name(i, &from, &to)) && count < NELEM(names); i++)
		names[count++] = n;
	for (size_t i = 0; i < count; i++)
		if (!strcmp(names[i], name)) {
			TRY(pass_canon_only(m, name));
			ir_sweep(m);
			return NULL;
		}
	return ERR(INVALID, "no rewrite '%s'%s; 'rondo opt --rewrites' has them", name, args_hint(name, names, count));
}

static struct err *run(char **file, int nfile, int *status)
{
	if (list) {
		for (const char *const *n = pass_names(); *n; n++)
			printf("%s\n", *n);
		return NULL;
	}
	if (rewrites) {
		const char *name, *from, *to;
		for (int i = 0; (name = pass_rewrite_name(i, &from, &to)); i++)
			printf("%-20s %s -> %s\n", name, from, to);
		return NULL;
	}
	if (ops) {
		print_ops();
		return NULL;
	}
	if (!nfile)
		return ERR(INVALID, "rondo opt needs: %s", cmd_opt.args);
	if (!!pass + !!only + !!rewrite + !!propagate > 1)
		return ERR(INVALID, "options '-p', '--only', '--rewrite' and '--propagate' exclude each other");
	struct ir_module *m;
	struct pass_opts o;
	struct str s = {0};
	TRY(source_read(file[0], &m));
	struct err *e = source_opts(tier, devices, hosts, m, &o);
	o.stop = pass;
	if (!e)
		e = arg_int("save", save, 0, INT64_MAX, &o.save);
	if (!e)
		e = ir_verify(m);
	if (!e && rewrite)
		e = apply(m, rewrite);
	if (!e && only)
		e = pass_run_only(&o, m, only);
	if (!e && pass)
		e = pass_run(&o, m);
	if (!e && propagate)
		e = spmd_propagate(m, NULL);
	if (!e && (pass || only || rewrite))
		e = ir_verify(m);
	if (!e && no_loc)
		for (size_t f = 1; f < m->fn.n; f++)
			for (size_t i = 0; i < m->fn.p[f]->op.n; i++)
				m->fn.p[f]->op.p[i].loc = 0;
	if (!e && !verify) {
		axes ? print_axes(&s, m) : ir_print(&s, m);
		fputs(s.p, stdout);
	}
	str_free(&s);
	ir_module_free(m);
	return e;
}

const struct command cmd_opt = {"opt", "FILE [-p PASS] [options]", "print a program's operations, as read or after a pass", opts, NELEM(opts), 0, 1, run};
