#include "base.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

enum kind { KIND_INT, KIND_SIZE, KIND_STR, KIND_BOOL };
static const struct row { const char *name; enum kind kind; const char *dflt, *help; } row[CONF_COUNT] = {
#define CONF(id, kind, dflt, help) { #id, KIND_##kind, dflt, help },
#include "conf.def"
#undef CONF
};
static struct { int64_t num; char *text; bool set; } value[CONF_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;
extern char **environ;

/* text -> num; false if it does not fit the kind. */
static bool number(enum kind k, const char *text, int64_t *num)
{
	char *end;
	*num = 0;
	switch (k) {
	case KIND_STR:
		return true;
	case KIND_BOOL:
		if (!strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "yes") || !strcasecmp(text, "on"))
			*num = 1;
		else if (*text && strcmp(text, "0") && strcasecmp(text, "false") && strcasecmp(text, "no") && strcasecmp(text, "off"))
			return false;
		return true;
	case KIND_INT:
		*num = strtoll(text, &end, 10);
		return end != text && !*end;
	case KIND_SIZE: {
		double x = strtod(text, &end);
		int shift = 0;
		if (end == text || !(x >= 0))
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
		*num = x < 9e18 ? (int64_t)x : INT64_MAX;
		return !*end;
	}
	}
	return false;
}

static void put(int i, const char *text, bool set)
{
	free(value[i].text);
	value[i].text = mem_alloc(strlen(text) + 1);
	memcpy(value[i].text, text, strlen(text));
	value[i].set = set;
	number(row[i].kind, text, &value[i].num);
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
		put(i, row[i].dflt, false);
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
		} else if (i >= 0 && !number(row[i].kind, eq + 1, &num)) {
			fprintf(stderr, "rondo: setting 'RONDO_%s' has the value '%s', which is ignored: %s\n", row[i].name, eq + 1, row[i].help);
		} else if (i >= 0) {
			put(i, eq + 1, true);
		}
	}
}

void conf_init(void) { pthread_once(&once, read_env); }
int64_t conf_int(enum conf_id id) { conf_init(); return value[id].num; }
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
	if (!number(row[i].kind, text, &num))
		return ERR(INVALID, "setting '%s' cannot be '%s': %s", row[i].name, text, row[i].help);
	put(i, text, true);
	return NULL;
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
