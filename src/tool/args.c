/* Options of a subcommand. */
#include "tool.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const struct command *const *commands;

const char *args_hint(const char *word, const char *const *cand, size_t n)
{
	static char text[128];
	const char *near = str_nearest(word, cand, n);
	text[0] = 0;
	if (near)
		snprintf(text, sizeof text, ", did you mean '%s'", near);
	return text;
}

static const char *dashes(const char *name) { return name[1] ? "--" : "-"; }

static bool is_opt(const struct opt *o, const char *word, size_t n)
{
	return strlen(o->name) == n && memcmp(o->name, word, n) == 0;
}

static struct err *unknown(const struct command *c, const char *word)
{
	const char *cand[32];
	size_t n = 0;
	for (; n < c->nopt && n < NELEM(cand); n++)
		cand[n] = c->opt[n].name;
	const char *bare = word + strspn(word, "-");
	const char *near = str_nearest(bare, cand, n);
	if (near)
		return ERR(INVALID, "rondo %s has no option '%s', did you mean '%s%s'", c->name, word, near[1] ? "--" : "-", near);
	return ERR(INVALID, "rondo %s has no option '%s'; see 'rondo help %s'", c->name, word, c->name);
}

bool args_ends(const char *s, const char *with)
{
	size_t n = strlen(s), k = strlen(with);
	return n >= k && !strcmp(s + n - k, with);
}

static bool executable(const char *path)
{
	struct stat st;
	return !access(path, X_OK) && !stat(path, &st) && S_ISREG(st.st_mode);
}

bool args_runs(const char *file)
{
	const char *at = getenv("PATH");
	bool found = !strcmp(file, "-m") || args_ends(file, ".py") || executable(file);
	for (; at && *at && !found && !strchr(file, '/'); at += *at == ':') {
		struct str s = {0};
		size_t n = strcspn(at, ":");
		str_addf(&s, "%.*s/%s", (int)n, at, file);
		found = executable(s.p);
		str_free(&s);
		at += n;
	}
	return found;
}

bool args_is_option(const struct command *c, const char *word) { return word[0] == '-' && word[1] && !(c->module && !strcmp(word, "-m")); }
bool args_hands_on(const struct command *c, const char *file) { return c->nfile_max == -1 || (c->nfile_max == ARGS_SCRIPT && args_runs(file)); }

struct err *args_parse(const struct command *c, int argc, char **argv, char **file, int *nfile)
{
	bool over = false;        /* no more options: "--" */
	*nfile = 0;
	for (int i = 0; i < argc; i++) {
		char *w = argv[i];
		if (!over && strcmp(w, "--") == 0) {
			over = true;
			continue;
		}
		if (over || !args_is_option(c, w)) {
			if (*nfile == c->nfile_max)
				return ERR(INVALID, "rondo %s does not know what to do with '%s'", c->name, w);
			file[(*nfile)++] = w;
			while ((over ? c->nfile_max < 0 : args_hands_on(c, file[0])) && ++i < argc)
				file[(*nfile)++] = argv[i];
			continue;
		}
		const char *name = w + strspn(w, "-"), *eq = strchr(name, '=');
		size_t n = eq ? (size_t)(eq - name) : strlen(name), k = 0;
		while (k < c->nopt && !is_opt(&c->opt[k], name, n))
			k++;
		if (k == c->nopt)
			return unknown(c, w);
		if (!c->opt[k].value && eq)
			return ERR(INVALID, "option '%.*s' of rondo %s takes no value", (int)(eq - w), w, c->name);
		if (!c->opt[k].value)
			*c->opt[k].str = "1";
		else if (eq)
			*c->opt[k].str = eq + 1;
		else if (i + 1 < argc)
			*c->opt[k].str = argv[++i];
		else
			return ERR(INVALID, "option '%s' of rondo %s needs a value: %s", w, c->name, c->opt[k].value);
	}
	file[*nfile] = NULL;
	if (*nfile < c->nfile_min)
		return ERR(INVALID, "rondo %s needs: %s", c->name, c->args);
	return NULL;
}

void args_help(FILE *f, const struct command *c)
{
	fprintf(f, "rondo %s %s\n  %s\n", c->name, c->args, c->help);
	for (size_t i = 0; i < c->nopt; i++) {
		char left[64];
		snprintf(left, sizeof left, "%s%s%s%s", dashes(c->opt[i].name), c->opt[i].name, c->opt[i].value ? " " : "",
		         c->opt[i].value ? c->opt[i].value : "");
		fprintf(f, "    %-22s %s\n", left, c->opt[i].help);
	}
}

struct err *arg_int(const char *name, const char *s, int64_t lo, int64_t hi, int64_t *out)
{
	if (!s)
		return NULL;
	char *end;
	errno = 0;
	long long v = strtoll(s, &end, 10);
	if (errno || *end || end == s || v < lo || v > hi)
		return ERR(INVALID, "option '%s%s' cannot be '%s': a number from %ld to %ld", dashes(name), name, s, (long)lo, (long)hi);
	*out = v;
	return NULL;
}

struct err *arg_real(const char *name, const char *s, double *out)
{
	if (!s)
		return NULL;
	char *end;
	double v = strtod(s, &end);
	if (*end || end == s || !(v >= 0))
		return ERR(INVALID, "option '%s%s' cannot be '%s': a number that is not negative", dashes(name), name, s);
	*out = v;
	return NULL;
}

struct err *arg_tier(const char *s, enum lower_tier *out)
{
	static const char *const tier[] = {"auto", "ref", "gen"};
	for (int i = 0; s && i < 3; i++)
		if (strcmp(s, tier[i]) == 0) {
			*out = i == 0 ? TIER_AUTO : i == 1 ? TIER_REF : TIER_GEN;
			return NULL;
		}
	return s ? ERR(INVALID, "option '--tier' cannot be '%s'%s: auto, ref or gen", s, args_hint(s, tier, 3)) : NULL;
}
