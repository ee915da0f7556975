/* The first screen of `rondo explain`: what costs most, in the width of a terminal. */
#include "explain.h"

enum { ROOM = 512, PROGRAMS = 5, LEAST_ROWS = 3, FIRST = 17 };      /* FIRST: letters of the share and the time */

void explain_what(struct str *s, const struct pass_cost *c, int room)
{
	bool line = c->site && c->site->text[0];
	const char *op = line ? strrchr(c->site->text, ' ') : NULL;
	if (c->in_place)                 /* it is shown behind another operation, whose line that is */
		str_addf(s, "%.*s%s%s", op ? (int)(op - c->site->text) : 0, op ? c->site->text : "", op ? " " : "", c->name);
	else
		str_add(s, line ? c->site->text : c->name);
	if (c->made) {
		size_t n = s->n;
		str_add(s, " ");
		pass_add_shape(s, c->made);
		s->n = s->n > (size_t)room ? n : s->n;
		s->p[s->n] = '\0';
	}
	if (c->sort == PASS_MOVES) {
		str_add(s, " ");
		pass_add_bytes(s, c->times > 0 ? c->bytes / c->times : 0);
		str_add(s, c->in_place ? " read in place" : "");
	}
	if (c->sort == PASS_CALLS)
		str_addf(s, "%s%s host code", line ? " " : "", line ? c->name : "");
}

void explain_share(struct str *s, const struct pass_cost *c)
{
	if (c->sort == PASS_COMPUTES && c->limit > 0 && c->ns > 0)
		str_addf(s, "%.0f %%", MIN(100 * c->limit / c->ns, 100));
}

void explain_head(struct str *s, const struct explained *x)
{
	const struct pass_account *a = &x->account;
	str_addf(s, "%s on %d device%s: ", x->name, a->p->ndev, a->p->ndev > 1 ? "s" : "");
	if (x->launches >= 0)
		str_addf(s, "%.0f launch%s of ", x->launches, x->launches == 1 ? "" : "es");
	pass_add_time(s, explained_ns(x));
	str_add(s, x->launches < 0 ? " a launch" : "");
	if (a->ns[PASS_MOVES] > 0) {
		str_add(s, ", ");
		pass_add_time(s, a->ns[PASS_MOVES]);
		str_add(s, " of it communication");
	}
}

static void line(int columns, enum ink ink, const char *fmt, ...) PRINTF(3, 4);
static void line(int columns, enum ink ink, const char *fmt, ...)
{
	char text[ROOM];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	screen_put(columns, ink, text);
	printf("\n");
}

static const char *time_of(struct str *s, double ns)
{
	s->n = 0;
	pass_add_time(s, ns);
	return s->p;
}

static enum ink heat(double percent) { return percent >= 20 ? INK_HOT : percent >= 10 ? INK_WARM : INK_END; }

static void row(const struct pass_cost *c, double all, int columns)
{
	struct str t = {0}, share = {0}, what = {0};
	double percent = all > 0 ? 100 * c->ns / all : 0;
	explain_share(&share, c);
	int room = screen_row(columns, heat(percent), FIRST, "%6.1f  %9s %7.6g %9s", percent, c->sort == PASS_CALLS ? "?" : time_of(&t, c->ns), c->times, share.n ? share.p : "");
	explain_what(&what, c, room);
	room = screen_put_site(room, c->sort == PASS_MOVES ? INK_MOVE : INK_END, what.p);
	const char *scope = c->site && c->site->scope ? c->site->scope : "", *inner = strchr(scope, '/'), *last = strrchr(scope, '/');
	if (inner && last > inner && !strncmp(scope, "jit(", 4) && room > 6) {      /* without the jit around, and the op's name; its end tells most */
		int n = (int)(last - ++inner), cut = MAX(n - (room - 2), 0) + (n > room - 2 ? 2 : 0);
		char end[ROOM];
		snprintf(end, sizeof end, "  %s%.*s", cut ? ".." : "", n - cut, inner + cut);
		screen_put(room, INK_DIM, end);
	}
	printf("\n");
	str_free(&t);
	str_free(&share);
	str_free(&what);
}

/* Temporaries: "2.0 MB train.py:6 dot, 1.0 MB x3 train.py:7 add", as far as there is room. */
static void peak(const struct pass_account *a, int columns)
{
	struct str s = {0}, one = {0};
	str_add(&s, "  at the peak: ");
	for (size_t i = 0; i < a->live.nlike; i++) {
		one.n = 0;
		str_add(&one, i ? ", " : "");
		pass_add_like(&one, &a->live.like[i]);
		str_addf(&one, " %s", a->live.like[i].site);
		if (i && s.n + one.n > (size_t)columns)
			break;
		str_addn(&s, one.p, one.n);
	}
	line(columns, INK_END, "%s", s.p);
	str_free(&s);
	str_free(&one);
}

/* A program in so many lines. */
static void program(const struct explained *x, int lines, int columns)
{
	const struct pass_account *a = &x->account;
	struct str t = {0}, u = {0};
	double all = explained_ns(x), left = 0;
	size_t n = 0, calls = 0, lighter = 0;

	explain_head(&u, x);
	line(columns, INK_HEAD, "%s", u.p);
	lines -= 3 + (a->live.nlike > 0) + (x->warnings > 0) + a->guessed;
	for (size_t i = 0; i < a->nline; i++)
		calls += a->line[i].sort == PASS_CALLS;
	lines -= calls > 0;
	line(screen_row(columns, INK_DIM, FIRST, "%6s  %9s %7s %9s", "%", "time", "times", "of limit"), INK_DIM, "line and operation");
	lines = MAX(lines, LEAST_ROWS);
	size_t most = a->nline - calls > (size_t)lines ? (size_t)lines - 1 : (size_t)lines, move = 0;
	while (move < a->nline && a->line[move].sort != PASS_MOVES)
		move++;
	for (size_t i = 0; i < a->nline; i++) {       /* the costliest, and of what travels the costliest in any case */
		bool keep = move < a->nline && i < move && n + 1 >= most;
		if (a->line[i].sort == PASS_CALLS)
			continue;
		if (n < most && !keep) {
			row(&a->line[i], all, columns);
			n++;
		} else {
			left += a->line[i].ns;
			lighter++;
		}
	}
	if (lighter)
		line(screen_row(columns, INK_DIM, FIRST, "%6.1f  %9s %7s %9s", all > 0 ? 100 * left / all : 0, time_of(&t, left), "", ""), INK_DIM, "%zu other%s", lighter, lighter > 1 ? "s" : "");
	if (calls)
		line(columns, INK_END, "host code is called from %zu line%s: what that takes is not known", calls, calls > 1 ? "s" : "");
	if (a->guessed)
		line(columns, INK_END, "a loop turns until a condition holds: %d turns are assumed", IR_TURNS);
	u.n = 0;
	str_add(&u, a->p->needs ? "memory: " : "memory: at least ");
	pass_add_bytes(&u, (double)pass_account_bytes(a));
	str_add(&u, "; arguments ");
	pass_add_bytes(&u, (double)a->arg);
	if (a->res > a->shared) {
		str_add(&u, ", results ");
		pass_add_bytes(&u, (double)(a->res - a->shared));
	}
	str_add(&u, ", temporary ");
	pass_add_bytes(&u, (double)a->p->zone);
	if (a->p->needs) {
		str_add(&u, ", work ");
		pass_add_bytes(&u, (double)(pass_account_bytes(a) - pass_account_said(a)));
	}
	line(columns, INK_HEAD, "%s", u.p);
	if (a->live.nlike)
		peak(a, columns);
	if (x->warnings)
		line(columns, INK_WARM, x->warnings > 1 ? "%d warnings of what travels without need: --full says which" : "%d warning of what travels without need: --full says which", x->warnings);
	str_free(&t);
	str_free(&u);
}

void explain_screen(const struct explained *x, size_t n, const char *title, int lines, int columns)
{
	struct str t = {0}, u = {0};
	double all = 0, launches = 0, left = 0;
	size_t most = n > PROGRAMS ? PROGRAMS - 1 : n;

	for (size_t i = 0; i < n; i++) {
		all += explained_all(&x[i]);
		launches += MAX(x[i].launches, 0);
	}
	if (n > 1) {
		line(columns, INK_HEAD, "%s: %zu programs, %.0f launches, %s on one core", title, n, launches, time_of(&t, all));
		line(screen_row(columns, INK_DIM, FIRST, "%6s  %9s %9s %9s", "%", "time", "launches", "each"), INK_DIM, "program");
		for (size_t i = 0; i < n; i++) {
			double percent = all > 0 ? 100 * explained_all(&x[i]) / all : 0;
			if (i >= most) {
				left += explained_all(&x[i]);
				continue;
			}
			time_of(&t, explained_all(&x[i]));
			int room = screen_row(columns, heat(percent), FIRST, "%6.1f  %9s %9.0f %9s", percent, t.p, x[i].launches, time_of(&u, explained_ns(&x[i])));
			line(room, heat(percent), "%s", x[i].name);
		}
		if (n > most)
			line(screen_row(columns, INK_DIM, FIRST, "%6.1f  %9s %9s %9s", all > 0 ? 100 * left / all : 0, time_of(&t, left), "", ""), INK_DIM, "%zu others", n - most);
		printf("\n");
		lines -= 3 + (int)most + (n > most);
	}
	program(&x[0], lines, columns);
	str_free(&t);
	str_free(&u);
}
