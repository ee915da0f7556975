/* rondo explain: what the compiler decided for a program, or for those that a script has run, and what it is expected to take. */
#include "explain.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SCREEN = 24, COLUMNS = 80, ROUND = 4 };       /* of a terminal without a size; lines around besides what leads on: blank ones, the shell's */

static const char *tier, *devices, *hosts, *all, *sharded, *full, *html, *out;

static const struct opt opts[] = {
	{"full", NULL, "all that was decided: what lies where and travels, loops, groups, kernels, memory", &full},
	{"html", "X.html", "write one file to look at: operations, memory over time, communication", &html},
	{"out", "FOLDER", "of a script: where its programs go (rondo-explain)", &out},
	{"devices", "N", "partitions; the program says by itself", &devices},
	{"hosts", "N", "as many hosts, which have equal parts of the devices one after the other (1)", &hosts},
	{"tier", "T", "ref, gen or auto", &tier},
	{"all", NULL, "of a sharded program every value and communication, not only those of weight", &all},
	{"sharded", NULL, "nothing but what lies where on the devices, and what travels between them", &sharded},
};

struct programs {
	struct arena arena;
	struct plan_table *table;
	ARR(struct explained) x;
	ARR(struct pass_told) told;      /* of files */
};

/* Entries of the section of warnings. */
static int warnings(const char *text)
{
	int n = 0;
	const char *p = strstr(text, "\nwarnings\n");
	for (p = p ? p + 10 : ""; p[0] == ' ' && p[1] == ' '; p = strchr(p, '\n') + 1)
		n += p[2] != ' ';
	return n;
}

static void add(struct programs *p, const char *name, const struct prog *prog, const struct plan_on *on, double launches, const char *text)
{
	struct str s = {0};
	str_add(&s, name);
	struct explained x = { .name = s.p, .launches = launches, .text = text, .warnings = warnings(text) };
	pass_account(&p->arena, prog, on, &x.account);
	arr_push(&p->x, x);
}

static void programs_free(struct programs *p)
{
	for (size_t i = 0; i < p->x.n; i++)
		mem_free(p->x.p[i].name);
	for (size_t i = 0; i < p->told.n; i++)
		pass_told_free(&p->told.p[i]);
	arr_free(&p->x);
	arr_free(&p->told);
	arena_fini(&p->arena);
	mem_free(p->table);
}

static int costlier(const void *a, const void *b)
{
	double x = explained_all(a), y = explained_all(b);
	return x < y ? 1 : x > y ? -1 : strcmp(((const struct explained *)a)->name, ((const struct explained *)b)->name);
}

/* A command that leads on, and what it shows: in a line of its own where both are more than the terminal has. */
static void lead(struct str *how, const char *path, const char *name, const char *option, const char *what)
{
	size_t at = how->n;
	str_addf(how, "rondo explain %s%s%s%s %s", path, name ? "/" : "", name ? name : "", name ? ".why" : "", option);
	bool fits = how->n - at + 3 + strlen(what) <= (size_t)screen_width(COLUMNS);
	str_addf(how, "%s%s\n", fits ? "   " : "\n    ", what);
}

/* Can a file be made, or replaced, by one that is made beside it? */
static struct err *writable(const char *path)
{
	struct stat st;
	struct str s = {0};
	struct err *e = NULL;
	bool there = !stat(path, &st);
	if (there && !S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? ERR(INVALID, "cannot write '%s': it is a folder", path) : NULL;
	script_beside(&s, path);
	int fd = mkstemp(s.p);
	if (fd < 0)
		e = ERR(UNAVAILABLE, "cannot write beside '%s': %s", path, strerror(errno));
	else {
		close(fd);
		unlink(s.p);
	}
	str_free(&s);
	return e;
}

/* --- a program's file ------------------------------------------------------------------ */

static struct err *shows(struct programs *p, const char *title, const char *how)
{
	int around = ROUND;
	for (const char *h = how; *h; h++)
		around += *h == '\n';
	explain_screen(p->x.p, p->x.n, title, screen_height(SCREEN) - around, screen_width(COLUMNS));
	printf("\n%s", how);
	if (!html)
		return NULL;
	fflush(stdout);
	TRY(explain_html(html, p->x.p, p->x.n, title));
	printf("%s is written, to be looked at\n", html);
	return NULL;
}

static struct err *compiled(struct programs *p, const char *path, struct ir_module *m)
{
	struct pass_opts o;
	struct str s = {0}, name = {0}, how = {0};
	struct prog *prog = NULL;
	struct err *e = source_opts(tier, devices, hosts, m, &o);
	bool text = full || all || sharded;
	str_add(&name, ir_text(m, m->name));
	if (!e)
		e = pass_explain(&s, &o, m, (all ? PASS_ALL : 0) | (sharded ? PASS_SHARDED : 0), &prog);
	if (!e && text && s.p)
		fputs(s.p, stdout);
	if (!e && prog && (!text || html)) {
		add(p, name.n ? name.p : "program", prog, &o.plan, -1, s.p);
		lead(&how, path, NULL, "--full", "all that was decided");
		e = text ? explain_html(html, p->x.p, p->x.n, path) : shows(p, path, how.p);
	}
	prog_free(prog);
	str_free(&s);
	str_free(&name);
	str_free(&how);
	return e;
}

/* The name of a file without folder and end. */
static void stem(struct str *s, const char *path)
{
	const char *base = strrchr(path, '/');
	base = base ? base + 1 : path;
	s->n = 0;
	str_addn(s, base, strlen(base) - (args_ends(base, ".why") ? 4 : 0));
}

static struct err *only_compiled(void)
{
	const char *name = devices ? "devices" : hosts ? "hosts" : tier ? "tier" : all ? "all" : sharded ? "sharded" : NULL;
	return name ? ERR(INVALID, "option '--%s' is for a program in a file, which is compiled by it; of what was run, 'rondo explain PROGRAM.why --full' has all that was decided", name) : NULL;
}

static void add_told(struct programs *p, struct pass_told *t, const char *path)
{
	struct str name = {0};
	arr_push(&p->told, *t);
	struct plan_on on = { p->table, t->prog->ndev, t->cores, t->host, plan_ring() };
	stem(&name, path);
	add(p, name.p, t->prog, &on, (double)t->launches, t->text.p);
	str_free(&name);
}

/* --- what a script has compiled ------------------------------------------------------------ */

struct files { size_t n, cap; char **p; };

/* Without their ends: NAME before NAME.2. */
static int by_name(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;
	size_t n = strlen(x) - 4, k = strlen(y) - 4;
	int c = memcmp(x, y, MIN(n, k));
	return c ? c : (n > k) - (n < k);
}

/* What is in a folder, with the folder's name. */
static struct err *list(const char *folder, struct files *f)
{
	DIR *d = opendir(folder);
	if (!d)
		return ERR(NOT_FOUND, "cannot open '%s': %s", folder, strerror(errno));
	for (struct dirent *i; (i = readdir(d));)
		if (args_ends(i->d_name, ".why")) {
			struct str s = {0};
			str_addf(&s, "%s/%s", folder, i->d_name);
			arr_push(f, s.p);
		}
	closedir(d);
	if (f->n)
		qsort(f->p, f->n, sizeof *f->p, by_name);
	return NULL;
}

static void files_free(struct files *f)
{
	for (size_t i = 0; i < f->n; i++)
		mem_free(f->p[i]);
	arr_free(f);
}

/* Is it a program of several devices that another process has compiled, too? */
static struct explained *same(struct programs *p, const struct pass_told *t)
{
	for (size_t i = 0; i < p->told.n; i++) {
		const struct pass_told *o = &p->told.p[i];
		if (t->prog->ndev > 1 && o->process != t->process && o->prog->fingerprint == t->prog->fingerprint && o->prog->ndev == t->prog->ndev && !strcmp(o->prog->name, t->prog->name))
			return &p->x.p[i];
	}
	return NULL;
}

static struct err *of_folder(struct programs *p, const char *folder, const char *title)
{
	struct files f = {0};
	struct err *e = list(folder, &f);
	for (size_t i = 0; i < f.n && !e; i++) {
		struct pass_told t;
		struct err *bad = source_told(f.p[i], &t);
		if (bad || !t.prog)           /* the others are shown all the same */
			fprintf(stderr, "rondo explain: %s%s\n", bad ? bad->msg : f.p[i], bad ? "" : " is nothing that RONDO_EXPLAIN has written");
		if (bad)
			t.prog = NULL;
		err_free(bad);
		struct explained *x = !t.prog ? NULL : same(p, &t);
		if (x) {
			x->launches = MAX(x->launches, (double)t.launches);
			pass_told_free(&t);
		} else if (t.prog) {
			add_told(p, &t, f.p[i]);
		}
	}
	files_free(&f);
	if (!e && !p->x.n)
		e = ERR(NOT_FOUND, "'%s' has nothing in it that RONDO_EXPLAIN has written; a program in a file is explained by the file's name", folder);
	if (!e) {
		struct str how = {0};
		qsort(p->x.p, p->x.n, sizeof *p->x.p, costlier);
		lead(&how, folder, p->x.p[0].name, "--full", "all that was decided");
		if (!html)
			lead(&how, folder, NULL, "--html why.html", "the same to look at");
		e = shows(p, title, how.p);
		str_free(&how);
	}
	return e;
}

/* What was written to a folder is moved to another one, of which earlier such files go. */
static struct err *move(const char *from, const char *to)
{
	struct files now = {0}, old = {0};
	struct err *e = mkdir(to, 0777) && errno != EEXIST ? ERR(UNAVAILABLE, "cannot make the folder '%s': %s", to, strerror(errno)) : list(to, &old);
	if (!e)
		e = list(from, &now);
	for (size_t i = 0; i < old.n && !e; i++)
		unlink(old.p[i]);
	for (size_t i = 0; i < now.n && !e; i++) {
		struct str s = {0};
		str_addf(&s, "%s/%s", to, now.p[i] + strlen(from) + 1);
		if (rename(now.p[i], s.p))
			e = ERR(UNAVAILABLE, "cannot write '%s': %s; what there is stays in '%s'", s.p, strerror(errno), from);
		str_free(&s);
	}
	files_free(&now);
	files_free(&old);
	rmdir(from);
	return e;
}

static struct err *script(struct programs *p, char **argv, int *status)
{
	const char *to = out ? out : "rondo-explain";
	struct stat st;
	struct files f = {0};
	struct str folder = {0};
	struct err *e = NULL;

	if (!stat(to, &st) && !S_ISDIR(st.st_mode))
		return ERR(INVALID, "cannot write into '%s': it is no folder", to);
	script_beside(&folder, to);
	if (!mkdtemp(folder.p))
		e = ERR(UNAVAILABLE, "cannot write beside '%s': %s", to, strerror(errno));
	else if (!(e = script_run("explain", "; of what is not run it takes one", argv, "RONDO_EXPLAIN", folder.p, status)))
		e = list(folder.p, &f);
	if (!e && f.n) {
		e = move(folder.p, to);
		printf("\n");
		if (!e)
			e = of_folder(p, to, !strcmp(argv[0], "-m") ? argv[1] : strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0]);
	} else if (!e && !*status) {
		e = script_nothing();
	}
	rmdir(folder.p);
	files_free(&f);
	str_free(&folder);
	if (e && *status) {                       /* the program has said why */
		err_free(e);
		e = NULL;
	}
	return e;
}

static struct err *explain(struct programs *p, char **file, int nfile, int *status)
{
	struct pass_told t = { .prog = NULL };
	struct ir_module *m;
	struct stat st;
	bool folder = nfile == 1 && !stat(file[0], &st) && S_ISDIR(st.st_mode), runs = nfile > 1 || (!folder && args_runs(file[0]));

	if (html)                                 /* a script may take hours */
		TRY(writable(html));
	if (out && !runs)
		return ERR(INVALID, "option '--out' is for scripts, which are run");
	if (full && (runs || folder))
		return ERR(INVALID, "option '--full' is for one program: 'rondo explain %s/PROGRAM.why --full'", folder ? file[0] : out ? out : "rondo-explain");
	if (runs || folder)
		TRY(only_compiled());
	for (int i = 1; runs && i < nfile; i++)
		if (!strcmp(file[i], "--html") || !strcmp(file[i], "--full") || !strcmp(file[i], "--out"))
			fprintf(stderr, "rondo: '%s' goes to %s: options of rondo explain come before it\n", file[i], file[0]);
	if (runs)
		return script(p, file, status);
	if (folder)
		return of_folder(p, file[0], file[0]);
	TRY(source_told(file[0], &t));
	if (!t.prog) {
		TRY(source_read(file[0], &m));
		struct err *e = compiled(p, file[0], m);
		ir_module_free(m);
		return e;
	}
	add_told(p, &t, file[0]);
	TRY(only_compiled());
	if (full) {
		fputs(p->told.p[0].text.p, stdout);
		return html ? explain_html(html, p->x.p, p->x.n, file[0]) : NULL;
	}
	struct str how = {0};
	lead(&how, file[0], NULL, "--full", "all that was decided");
	struct err *e = shows(p, file[0], how.p);
	str_free(&how);
	return e;
}

static struct err *run(char **file, int nfile, int *status)
{
	struct programs p = { .table = mem_alloc(sizeof *p.table) };
	arena_init(&p.arena);
	struct err *e = plan_table_get(p.table);
	if (!e)
		e = explain(&p, file, nfile, status);
	programs_free(&p);
	return e;
}

const struct command cmd_explain = {"explain", "FILE | FOLDER | SCRIPT.py [args]", "say what a program costs and why, or those that a script, or -m MODULE, runs (options before it)", opts, NELEM(opts), 1, ARGS_SCRIPT, run, NULL, true};
