#include "base.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

enum kind { KIND_INT, KIND_SIZE, KIND_STR, KIND_BOOL };
static const struct row { const char *name; enum kind kind; const char *dflt, *accepted, *help; } row[CONF_COUNT] = {
#define CONF(id, kind, dflt, accepted, help) { #id, KIND_##kind, dflt, accepted, help },
#include "conf.def"
#undef CONF
};
static struct conf_value { int64_t num; char *text; bool set; } own[CONF_COUNT], *value = own;
static struct mem_once once;
extern char **environ;

/* Which of the words it is, from 1 on; 0: none. */
static int among(const char *words, const char *text)
{
	size_t n = strlen(text);
	int i = 1;
	for (const char *w = words; *w; w += strspn(w, ", "), i++) {
		size_t k = strcspn(w, ",");
		if (k == n && !memcmp(w, text, n))
			return i;
		w += k;
	}
	return 0;
}

/* text -> num; false if row r does not accept it. */
static bool number(const struct row *r, const char *text, int64_t *num)
{
	char *end;
	*num = 0;
	switch (r->kind) {
	case KIND_STR:
		*num = among(r->accepted, text);
		return *num || !*r->accepted || !strcmp(text, r->dflt);
	case KIND_BOOL:
		if (!strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "yes") || !strcasecmp(text, "on"))
			*num = 1;
		else if (*text && strcmp(text, "0") && strcasecmp(text, "false") && strcasecmp(text, "no") && strcasecmp(text, "off"))
			return false;
		return true;
	case KIND_INT:
		errno = 0;
		*num = strtoll(text, &end, 10);
		if (end == text || *end || errno)
			return false;
		int64_t least = strtoll(r->accepted, &end, 10), most = end[2] ? strtoll(end + 2, NULL, 10) : INT64_MAX;
		return *num >= least && *num <= most;
	case KIND_SIZE: {
		double x = strtod(text, &end);
		int shift = 0;
		if (end == text || !(x >= 0) || x > 9e18)
			return false;
		switch (toupper((unsigned char)*end)) {
		case 'T': shift += 10; /* fall through */
		case 'G': shift += 10; /* fall through */
		case 'M': shift += 10; /* fall through */
		case 'K': shift += 10; end++;
		}
		if (toupper((unsigned char)*end) == 'B')
			end++;
		x *= (double)((int64_t)1 << shift);
		*num = x < 9e18 ? (int64_t)x : 0;
		return x < 9e18 && !*end;
	}
	}
	return false;
}

static bool put(int i, const char *text, bool set)
{
	size_t n = strlen(text) + 1;
	char *copy = malloc(n);
	if (!copy)
		return false;
	free(value[i].text);
	value[i].text = memcpy(copy, text, n);
	value[i].set = set;
	number(&row[i], text, &value[i].num);
	return true;
}

static int find(const char *name, size_t n)
{
	for (int i = 0; i < CONF_COUNT; i++)
		if (strlen(row[i].name) == n && !memcmp(row[i].name, name, n))
			return i;
	return -1;
}

static const char *nearest(const char *name)
{
	const char *all[CONF_COUNT];
	for (int i = 0; i < CONF_COUNT; i++)
		all[i] = row[i].name;
	return str_nearest(name, all, CONF_COUNT);
}

/* Other parts of Rondo that read a variable of their own. */
static bool foreign(const char *name, size_t n)
{
	static const char *const known[] = { "GEN_PATH", "CORPUS", "JAX_SRC", "BENCH_OUT", "LIBRARY" };
	for (size_t i = 0; i < NELEM(known); i++)
		if (strlen(known[i]) == n && !memcmp(known[i], name, n))
			return true;
	return false;
}

static void read_env(void)
{
	for (int i = 0; i < CONF_COUNT; i++)
		if (!put(i, row[i].dflt, false))
			mem_new(SIZE_MAX);             /* there is no memory: for the guard */
	for (char **e = environ; e && *e; e++) {
		if (strncmp(*e, "RONDO_", 6))
			continue;
		const char *name = *e + 6, *eq = strchr(name, '=');
		if (!eq)
			continue;
		int i = find(name, (size_t)(eq - name));
		int64_t num;
		if (i < 0 && !foreign(name, (size_t)(eq - name))) {
			char text[64];
			snprintf(text, sizeof text, "%.*s", (int)(eq - name), name);
			const char *near = nearest(text);
			fprintf(stderr, "rondo: unknown setting 'RONDO_%s'%s%s%s\n", text, near ? ", did you mean 'RONDO_" : "",
			        near ? near : "", near ? "'" : "");
		} else if (i >= 0 && !eq[1] && (row[i].kind != KIND_STR || *row[i].accepted)) {
			continue;
		} else if (i >= 0 && !number(&row[i], eq + 1, &num)) {
			fprintf(stderr, "rondo: setting 'RONDO_%s' cannot be '%s', which is ignored: %s%s%s\n", row[i].name, eq + 1, row[i].accepted,
			        *row[i].accepted ? "; " : "", row[i].help);
		} else if (i >= 0 && !put(i, eq + 1, true)) {
			mem_new(SIZE_MAX);
		}
	}
}

struct conf_value *conf_home(void) { conf_init(); return value; }

void conf_join(struct conf_value *v)
{
	value = v;
	atomic_store(&once.done, true);
}

void conf_init(void) { mem_once(&once, read_env); }
int64_t conf_int(enum conf_id id) { conf_init(); return value[id].num; }
int64_t conf_number(const char *name) { conf_init(); int i = find(name, strlen(name)); return i < 0 ? 0 : value[i].num; }
const char *conf_str(enum conf_id id) { conf_init(); return value[id].text; }
bool conf_is_set(enum conf_id id) { conf_init(); return value[id].set; }

struct err *conf_set(const char *name, const char *text)
{
	conf_init();
	char up[64];
	size_t n = strlen(name);
	if (n >= sizeof up)
		return ERR(INVALID, "unknown setting '%s'", name);
	for (size_t i = 0; i <= n; i++)
		up[i] = (char)toupper((unsigned char)name[i]);
	int i = find(up, n);
	int64_t num;
	if (i < 0) {
		const char *near = nearest(up);
		return near ? ERR(INVALID, "unknown setting '%s', did you mean '%s'", name, near) : ERR(INVALID, "unknown setting '%s'", name);
	}
	if (!number(&row[i], text, &num))
		return ERR(INVALID, "setting '%s' cannot be '%s': %s%s%s", row[i].name, text, row[i].accepted, *row[i].accepted ? "; " : "", row[i].help);
	return put(i, text, true) ? NULL : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", strlen(text) + 1);
}

void conf_useless(enum conf_id id, const char *fmt, ...)
{
	static _Atomic bool said[CONF_COUNT];
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	bool first = !atomic_exchange(&said[id], true);
	log_line(first ? LOG_WARN : LOG_INFO, "setting 'RONDO_%s' is '%s': %s", row[id].name, conf_str(id), text);
}

bool conf_cache(struct str *s, bool make)
{
	const char *c = conf_str(CONF_CACHE), *home = getenv("HOME");
	bool at_home = c[0] == '~' && (!c[1] || c[1] == '/'), made = !make;

	if (!*c || (at_home && !home))
		return false;
	size_t at = s->n;
	str_addf(s, "%s%s/", at_home ? home : "", c + at_home);
	for (char *p = s->p + at + 1; make && (p = strchr(p, '/')); p++) {
		*p = '\0';
		made = !mkdir(s->p + at, 0777) || errno == EEXIST;
		if (!made && !p[1] && conf_is_set(CONF_CACHE))
			conf_useless(CONF_CACHE, "compiled programs are not kept, since the folder cannot be made: %s", strerror(errno));
		*p = '/';
	}
	return made;
}

void conf_help(FILE *f)
{
	conf_init();
	for (int i = 0; i < CONF_COUNT; i++)
		fprintf(f, "  RONDO_%-9s %-16s %s\n", row[i].name, *value[i].text ? value[i].text : "\"\"", row[i].help);
}
