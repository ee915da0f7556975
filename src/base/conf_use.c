/* What can go wrong with a setting: one that a client sets, one that is of no use, a folder that cannot be made. */
#include "conf.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct err *conf_set(const char *name, const char *text)
{
	conf_init();
	char up[64], shown[STR_SHOWN];
	size_t n = strlen(name);
	if (n >= sizeof up)
		return ERR(INVALID, "unknown setting 'RONDO_%s'", name);
	for (size_t i = 0; i <= n; i++)
		up[i] = (char)toupper((unsigned char)name[i]);
	int i = conf_find(up, n);
	int64_t num;
	if (i < 0) {
		const char *near = conf_nearest(up);
		return ERR(INVALID, "unknown setting 'RONDO_%s'%s%s%s", up, near ? ", did you mean 'RONDO_" : "", near ? near : "", near ? "'" : "");
	}
	if (!conf_reads(&conf_row[i], text, &num))
		return ERR(INVALID, "setting 'RONDO_%s' cannot be '%s': %s%s%s", conf_row[i].name, str_shown(text, shown), conf_row[i].accepted, *conf_row[i].accepted ? "; " : "", conf_row[i].help);
	return conf_put(i, text, true) ? NULL : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", strlen(text) + 1);
}

void conf_useless(enum conf_id id, const char *fmt, ...)
{
	char text[512], shown[STR_SHOWN];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	bool first = !atomic_exchange(&conf_home()[id].useless, true);
	log_line(first ? LOG_WARN : LOG_INFO, "setting 'RONDO_%s' is '%s': %s", conf_row[id].name, str_shown(conf_str(id), shown), text);
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

void conf_file(enum conf_id id, struct str *s, const char *base, const char *ext)
{
	struct stat st;

	str_add(s, conf_str(id));
	if (!stat(s->p, &st) && S_ISDIR(st.st_mode))
		str_addf(s, "/%s-%d.%s", base, (int)getpid(), ext);
}
