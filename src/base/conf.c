#include "conf.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>

const struct conf_row conf_row[CONF_COUNT] = {
#define CONF(id, kind, dflt, accepted, help) { #id, KIND_##kind, dflt, accepted, help },
#include "conf.def"
};
static const struct { const char *name, *dflt, *help; } other[] = {
#define CONF_OTHER(id, dflt, help) { #id, dflt, help },
#include "conf.def"
};
static struct conf_value own[CONF_COUNT], *value = own;
static struct mem_once once;
static bool quiet;
static char complaints[4096];
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

/* tcp://host:port, or a path: what has no / in it is neither. */
static bool is_place(const char *text)
{
	const char *colon = strrchr(text, ':');
	char *end;
	if (strncmp(text, "tcp://", 6))
		return strchr(text, '/') && !strstr(text, "://");
	if (colon <= text + 6)
		return false;
	long port = strtol(colon + 1, &end, 10);
	return port > 0 && port < 65536 && !end[*end == '/'];
}

bool conf_reads(const struct conf_row *r, const char *text, int64_t *num)
{
	char *end;
	*num = 0;
	switch (r->kind) {
	case KIND_STR:
		*num = among(r->accepted, text);
		return *num || !*r->accepted || !strcmp(text, r->dflt);
	case KIND_PLACE:
		return !*text || is_place(text);
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
		return x < 9e18 && !*end && (!(x > 0) || x >= CONF_LEAST);
	}
	}
	return false;
}

bool conf_put(int i, const char *text, bool set)
{
	size_t n = strlen(text) + 1;
	char *copy = malloc(n);
	if (!copy)
		return false;
	free(value[i].text);
	value[i].text = memcpy(copy, text, n);
	value[i].set = set;
	conf_reads(&conf_row[i], text, &value[i].num);
	return true;
}

int conf_find(const char *name, size_t n)
{
	for (int i = 0; i < CONF_COUNT; i++)
		if (strlen(conf_row[i].name) == n && !memcmp(conf_row[i].name, name, n))
			return i;
	return -1;
}

const char *conf_nearest(const char *name)
{
	const char *all[CONF_COUNT];
	for (int i = 0; i < CONF_COUNT; i++)
		all[i] = conf_row[i].name;
	return str_nearest(name, all, CONF_COUNT);
}

static bool foreign(const char *name, size_t n)
{
	for (size_t i = 0; i < NELEM(other); i++)
		if (strlen(other[i].name) == n && !memcmp(other[i].name, name, n))
			return true;
	return false;
}

static void PRINTF(1, 2) complain(const char *fmt, ...)
{
	char text[1024];
	size_t have = strlen(complaints);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text - 1, fmt, ap);
	va_end(ap);
	if (!quiet)
		fprintf(stderr, "rondo: %s\n", text);
	if (have + strlen(text) + 2 <= sizeof complaints)
		snprintf(complaints + have, sizeof complaints - have, "%s\n", text);
}

static void read_env(void)
{
	for (int i = 0; i < CONF_COUNT; i++)
		if (!conf_put(i, conf_row[i].dflt, false))
			mem_new(SIZE_MAX);             /* there is no memory: for the guard */
	for (char **e = environ; e && *e; e++) {
		if (strncmp(*e, "RONDO_", 6))
			continue;
		const char *name = *e + 6, *eq = strchr(name, '=');
		if (!eq)
			continue;
		int i = conf_find(name, (size_t)(eq - name));
		char shown[STR_SHOWN];
		int64_t num;
		if (i < 0 && !foreign(name, (size_t)(eq - name))) {
			char text[64];
			snprintf(text, sizeof text, "%.*s", (int)(eq - name), name);
			const char *near = conf_nearest(text);
			complain("unknown setting 'RONDO_%s'%s%s%s", text, near ? ", did you mean 'RONDO_" : "",
			        near ? near : "", near ? "'" : "");
		} else if (i >= 0 && !eq[1] && (conf_row[i].kind != KIND_STR || *conf_row[i].accepted)) {
			continue;
		} else if (i >= 0 && !conf_reads(&conf_row[i], eq + 1, &num)) {
			complain("setting 'RONDO_%s' cannot be '%s', which is ignored: %s%s%s", conf_row[i].name, str_shown(eq + 1, shown), conf_row[i].accepted,
			        *conf_row[i].accepted ? "; " : "", conf_row[i].help);
		} else if (i >= 0 && !conf_put(i, eq + 1, true)) {
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
int64_t conf_number(const char *name) { conf_init(); int i = conf_find(name, strlen(name)); return i < 0 ? 0 : value[i].num; }
const char *conf_complaints(void) { conf_init(); return complaints; }
void conf_quietly(void) { quiet = true; }
const char *conf_str(enum conf_id id) { conf_init(); return value[id].text; }
bool conf_is_set(enum conf_id id) { conf_init(); return value[id].set; }

void conf_help(FILE *f)
{
	conf_init();
	for (int i = 0; i < CONF_COUNT; i++)
		fprintf(f, "  RONDO_%-16s %-16s %s%s%s\n", conf_row[i].name, *value[i].text ? value[i].text : "\"\"", conf_row[i].accepted, *conf_row[i].accepted ? "; " : "", conf_row[i].help);
	fprintf(f, "\nand what is read before there are settings:\n");
	for (size_t i = 0; i < NELEM(other); i++) {
		char name[64];
		snprintf(name, sizeof name, "RONDO_%s", other[i].name);
		const char *now = getenv(name);
		fprintf(f, "  %-22s %-16s %s (%s)\n", name, now ? now : "\"\"", other[i].help, other[i].dflt);
	}
}
