/* Programs in one file of HTML, which needs no other: what `rondo explain` says, all of it, and memory over time as a drawing. */
#include "explain.h"

#include <limits.h>

enum { ROWS = 200, LARGEST = 40, WIDE = 720, HIGH = 160, POINTS = 360, FOOT = 18 };

static void text(struct str *s, const char *t)
{
	for (; *t; t++)
		switch (*t) {
		case '&': str_add(s, "&amp;"); break;
		case '<': str_add(s, "&lt;"); break;
		case '>': str_add(s, "&gt;"); break;
		case '"': str_add(s, "&quot;"); break;
		default: str_addn(s, (unsigned char)*t < ' ' && *t != '\n' ? " " : t, 1);
		}
}

static void time_cell(struct str *s, double ns)
{
	str_add(s, "<td>");
	pass_add_time(s, ns);
	str_add(s, "</td>");
}

static void bytes_cell(struct str *s, double n)
{
	str_add(s, "<td>");
	pass_add_bytes(s, n);
	str_add(s, "</td>");
}

static void what_cell(struct str *s, const struct pass_cost *c)
{
	struct str t = {0};
	explain_what(&t, c, INT_MAX);
	str_add(s, "<td class=what>");
	text(s, t.p);
	if (c->site && c->site->scope) {
		str_add(s, " <i>");
		text(s, c->site->scope);
		str_add(s, "</i>");
	}
	str_add(s, "</td>");
	str_free(&t);
}

/* A row of operations: as the screen has it, a bar of its share, and what it reads and writes. */
static void operation(struct str *s, const struct pass_cost *c, double all)
{
	struct str share = {0};
	double percent = all > 0 ? 100 * c->ns / all : 0;
	explain_share(&share, c);
	str_addf(s, "<tr class=%s><td><b style=\"width:%.1f%%\"></b>%.1f</td>", c->sort == PASS_MOVES ? "move" : "op", percent, percent);
	if (c->sort == PASS_CALLS)
		str_add(s, "<td>?</td>");
	else
		time_cell(s, c->ns);
	str_addf(s, "<td>%.6g</td><td>%s</td>", c->times, share.n ? share.p : "");
	bytes_cell(s, c->bytes);
	str_addf(s, "<td class=what>%s</td>", c->work);
	what_cell(s, c);
	str_add(s, "</tr>\n");
	str_free(&share);
}

static void operations(struct str *s, const struct pass_cost *c, size_t n, double all, const char *class)
{
	double rest = 0;
	str_addf(s, "<table class=%s><tr><th>%%</th><th>time</th><th>times</th><th>of limit</th><th>bytes</th><th class=what>what</th><th class=what>line and operation</th></tr>\n", class);
	for (size_t i = 0; i < n; i++)
		if (i < ROWS)
			operation(s, &c[i], all);
		else
			rest += c[i].ns;
	if (n > ROWS) {
		str_addf(s, "<tr><td>%.1f</td>", all > 0 ? 100 * rest / all : 0);
		time_cell(s, rest);
		str_addf(s, "<td></td><td></td><td></td><td></td><td class=what>%zu others</td></tr>\n", n - ROWS);
	}
	str_add(s, "</table>\n");
}

static void communication(struct str *s, const struct pass_account *a)
{
	double copied = 0, n = 0;
	for (size_t i = 0; i < a->n; i++)
		if (a->cost[i].sort == PASS_MOVES) {
			copied += a->cost[i].in_place ? 0 : a->cost[i].bytes;
			n++;
		}
	if (!(n > 0))
		return;
	str_add(s, "<h3>communication of a launch: ");
	pass_add_bytes(s, copied);
	str_add(s, " into each device, about ");
	pass_add_time(s, a->ns[PASS_MOVES]);
	str_add(s, "</h3>\n<table class=comm><tr><th>bytes</th><th>time</th><th>times</th><th class=what>what</th><th class=what>line and operation</th></tr>\n");
	for (size_t i = 0; i < a->n; i++) {
		const struct pass_cost *c = &a->cost[i];
		if (c->sort != PASS_MOVES)
			continue;
		str_add(s, "<tr>");
		bytes_cell(s, c->bytes);
		time_cell(s, c->ns);
		str_addf(s, "<td>%.6g</td><td class=what>%s%s</td>", c->times, c->name, c->in_place ? ", read in place" : "");
		what_cell(s, c);
		str_add(s, "</tr>\n");
	}
	str_add(s, "</table>\n");
}

/* Arguments and results are there all the time; above them temporaries by command, of several that share a point the most. */
static void drawing(struct str *s, const struct pass_account *a)
{
	int64_t base = a->arg + a->res - a->shared, top = MAX(base + MAX(a->p->zone, a->live.most), 1);
	int n = (int)MIN(a->live.ncmd, (int64_t)POINTS);
	double x = 0, scale = (double)HIGH / (double)top;
	str_addf(s, "<svg viewBox=\"0 0 %d %d\" role=img><title>bytes of a device, command by command</title>", WIDE, HIGH + FOOT);
	str_addf(s, "<rect class=base x=0 y=%.1f width=%d height=%.1f><title>arguments and results: ", HIGH - (double)base * scale, WIDE, (double)base * scale);
	pass_add_bytes(s, (double)base);
	str_add(s, "</title></rect>\n");
	for (int i = 0; i < n; i++) {
		int64_t from = a->live.ncmd * i / n, to = a->live.ncmd * (i + 1) / n, most = 0;
		double wide = (double)WIDE / n;
		for (int64_t k = from; k < to; k++)
			most = MAX(most, a->live.live[k]);
		str_addf(s, "<rect class=%s x=%.1f y=%.1f width=%.2f height=%.1f><title>command %lld: ", a->live.peak >= from && a->live.peak < to ? "peak" : "temp", x,
		         HIGH - (double)(base + most) * scale, wide + .05, (double)most * scale, (long long)from);
		pass_add_bytes(s, (double)most);
		str_add(s, "</title></rect>");
		x += wide;
	}
	double laid = HIGH - (double)(base + a->p->zone) * scale;
	str_addf(s, "<line x1=0 x2=%d y1=%.1f y2=%.1f><title>laid out</title></line>", WIDE, laid, laid);
	str_addf(s, "<text x=4 y=%.1f>", laid + 13);
	pass_add_bytes(s, (double)(base + a->p->zone));
	if ((double)base * scale > FOOT) {
		str_addf(s, "</text><text x=4 y=%.1f>", HIGH - (double)base * scale + 13);
		pass_add_bytes(s, (double)base);
	}
	str_addf(s, "</text><text x=0 y=%d>command 0</text><text x=%d y=%d text-anchor=end>%lld</text></svg>\n", HIGH + 13, WIDE, HIGH + 13, (long long)MAX(a->live.ncmd - 1, 0));
}

static void memory(struct str *s, const struct pass_account *a)
{
	str_add(s, "<h3>memory of a device: ");
	pass_add_needs(s, a);
	str_add(s, "</h3>\n<p>");
	pass_add_memory(s, a);
	str_addf(s, ". Below, over the %lld commands of the program, those of a loop once: grey arguments and results, blue temporaries, red where they are most, dashed what is laid out.</p>\n", (long long)a->live.ncmd);
	drawing(s, a);
	if (!a->live.nlike)
		return;
	str_add(s, "<p>temporaries alive at the peak: ");
	pass_add_bytes(s, (double)a->live.most);
	str_addf(s, ", at command %lld</p>\n<table class=held><tr><th>bytes</th><th class=what>line and operation</th></tr>\n", (long long)a->live.peak);
	for (size_t i = 0; i < a->live.nlike && i < LARGEST; i++) {
		str_add(s, "<tr><td>");
		pass_add_like(s, &a->live.like[i]);
		str_add(s, "</td><td class=what>");
		text(s, a->live.like[i].site);
		str_add(s, "</td></tr>\n");
	}
	str_add(s, "</table>\n");
}

static void program(struct str *s, const struct explained *x, size_t i)
{
	const struct pass_account *a = &x->account;
	struct str head = {0};
	str_addf(s, "<section id=p%zu><h2>", i);
	explain_head(&head, x);
	text(s, head.p);
	str_free(&head);
	str_add(s, "</h2>\n");
	if (a->guessed)
		str_addf(s, "<p>A loop turns until a condition holds: %d turns are assumed.</p>\n", IR_TURNS);
	str_add(s, "<h3>operations of a launch, by line</h3>\n");
	operations(s, a->line, a->nline, explained_ns(x), "ops");
	str_add(s, "<details><summary>one by one</summary>\n");
	operations(s, a->cost, a->n, explained_ns(x), "\"ops each\"");
	str_add(s, "</details>\n");
	communication(s, a);
	memory(s, a);
	if (x->text && *x->text) {
		str_add(s, "<details><summary>all that was decided</summary><pre>");
		text(s, x->text);
		str_add(s, "</pre></details>");
	}
	str_add(s, "</section>\n");
}

static const char style[] =
	":root{color-scheme:light dark}body{font:14px/1.4 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}"
	"table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{text-align:right;padding:.1em .7em;font-weight:400;white-space:nowrap;vertical-align:top}th{opacity:.6}td.what:last-child{white-space:normal;overflow-wrap:anywhere}"
	".what{text-align:left}td i{opacity:.6}.ops td:first-child{position:relative;min-width:6em}td b{position:absolute;left:0;top:15%;height:70%;background:#c33;opacity:.35}"
	".move td b{background:#08a}.move .what:last-child{color:#08a}tr:hover{background:#8882}pre{overflow:auto}section{margin-top:3em}h3{margin:1.5em 0 .3em}"
	"svg{width:100%;background:#8881}.base{fill:#888;opacity:.4}.temp{fill:#48c}.peak{fill:#c33}line{stroke:#888;stroke-dasharray:4}"
	"text{font-size:12px;fill:currentColor}";

struct err *explain_html(const char *path, const struct explained *x, size_t n, const char *title)
{
	struct str s = {0};
	double all = 0;
	str_add(&s, "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>");
	text(&s, title);
	str_addf(&s, "</title><style>%s</style>\n<h1>", style);
	text(&s, title);
	str_add(&s, "</h1>\n<p>Times are those of the machine table, of one core of each device, with all operands in memory: what <code>rondo trace</code> measures is what it took. "
	            "<i>Of limit</i>: how near that is to operations or bytes alone.</p>\n");
	for (size_t i = 0; i < n; i++)
		all += explained_all(&x[i]);
	if (n > 1) {
		str_add(&s, "<table class=programs><tr><th>%</th><th>time</th><th>launches</th><th>each</th><th class=what>program</th></tr>\n");
		for (size_t i = 0; i < n; i++) {
			str_addf(&s, "<tr><td>%.1f</td>", all > 0 ? 100 * explained_all(&x[i]) / all : 0);
			time_cell(&s, explained_all(&x[i]));
			str_addf(&s, "<td>%.0f</td>", MAX(x[i].launches, 0));
			time_cell(&s, explained_ns(&x[i]));
			str_addf(&s, "<td class=what><a href=\"#p%zu\">", i);
			text(&s, x[i].name);
			str_add(&s, "</a></td></tr>\n");
		}
		str_add(&s, "</table>\n");
	}
	for (size_t i = 0; i < n; i++)
		program(&s, &x[i], i);
	str_add(&s, "</html>\n");
	struct err *e = str_write_file(path, s.p, s.n);
	str_free(&s);
	return e;
}
