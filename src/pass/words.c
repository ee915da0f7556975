/* Numbers and places as a person reads them. */
#include "passes.h"

void pass_add_bytes(struct str *s, double n)
{
	static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
	int u = 0;
	for (; n >= 1000 && u < 4; u++)
		n /= 1000;
	str_addf(s, u ? "%.1f %s" : "%.0f %s", n, unit[u]);
}

void pass_add_time(struct str *s, double ns)
{
	str_addf(s, ns < 1e3 ? "%.0f ns" : ns < 1e6 ? "%.1f us" : ns < 1e9 ? "%.1f ms" : "%.1f s", ns < 1e3 ? ns : ns < 1e6 ? ns / 1e3 : ns < 1e9 ? ns / 1e6 : ns / 1e9);
}

void pass_add_place(struct str *s, const struct ir_module *m, ir_loc l)
{
	size_t n = s->n;
	ir_loc_lines(s, m, l);
	if (s->n == n)
		str_add(s, "(no line)");
}

void pass_add_shape(struct str *s, const struct prog_view *v)
{
	if (!v)
		return;
	str_addf(s, "%s[", dtype_info[v->dtype].name);
	for (int d = 0; d < v->rank; d++)
		str_addf(s, "%s%ld", d ? "," : "", (long)v->dim[d]);
	str_add(s, "]");
}

void pass_add_like(struct str *s, const struct prog_like *x)
{
	pass_add_bytes(s, (double)x->bytes);
	if (x->n > 1)
		str_addf(s, " x%lld", (long long)x->n);
}

void pass_add_wrapped(struct str *s, const char *text, int indent)
{
	for (const char *at = text; *at; at += *at == ' ') {
		size_t room = (size_t)(PASS_WIDTH - indent), n = strlen(at), within = 0, outside = 0;
		int depth = 0;
		for (size_t i = 0; n > room && i <= room; i++) {
			depth += at[i] == '(' ? 1 : at[i] == ')' ? -1 : 0;
			within = at[i] == ' ' ? i : within;
			outside = at[i] == ' ' && depth <= 0 ? i : outside;
		}
		if (n > room)
			n = outside > room / 3 ? outside : within ? within : n;
		str_addf(s, "%*s%.*s\n", indent, "", (int)n, at);
		indent += at == text ? 2 : 0;
		at += n;
	}
}
