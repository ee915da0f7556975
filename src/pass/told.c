/* What was decided for a program that a process has compiled, in a file of its own: the words, the compiled program, and how often it was launched
 * so far, which is counted in the file itself, so that it is there however the process ends. */
#include "pass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const char magic[8] = "RONDOWHY";
enum { FORM = 2, MOST_NAME = 80, MOST_FILES = 1000000 };

/* Then: nhost numbers, the words, the program as prog_save has it. */
struct head { char magic[8]; int64_t form, launches, process, needs, cores, nhost, ntext, nprog; };

static void name_of(struct str *s, const char *folder, const char *name, int k)
{
	size_t at;
	s->n = 0;
	str_addf(s, "%s/", folder);
	at = s->n;
	str_addf(s, "%.*s", MOST_NAME, *name ? name : "program");
	for (char *p = s->p + at; *p; p++)
		*p = strchr("/ \t\n'\"\\", *p) || (unsigned char)*p < ' ' ? '_' : *p;
	str_addf(s, k > 1 ? ".%d.why" : ".why", k);
}

struct err *pass_told_write(const char *folder, const struct str *text, const struct plan_on *on, struct prog *p)
{
	struct head h = { .form = FORM, .process = getpid(), .needs = p->needs, .cores = on->cores, .nhost = on->host ? p->ndev : 0, .ntext = (int64_t)text->n };
	struct str path = {0}, all = {0};
	struct err *e = NULL;
	int fd = -1;

	memcpy(h.magic, magic, sizeof magic);
	str_addn(&all, (char *)&h, sizeof h);
	for (int64_t i = 0; i < h.nhost; i++)
		str_addn(&all, (char *)&(int64_t){ on->host[i] }, sizeof(int64_t));
	str_addn(&all, text->p ? text->p : "", text->n);
	size_t at = all.n;
	prog_save(&all, p);
	h.nprog = (int64_t)(all.n - at);
	memcpy(all.p, &h, sizeof h);
	for (int k = 1; fd < 0 && k < MOST_FILES; k++) {         /* processes share the folder */
		name_of(&path, folder, p->name ? p->name : "", k);
		fd = open(path.p, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 && errno != EEXIST)
			break;
	}
	ssize_t n = 0;
	for (size_t i = 0; fd >= 0 && n >= 0 && i < all.n; i += (size_t)MAX(n, 0))
		n = write(fd, all.p + i, all.n - i);
	struct head *map = fd < 0 || n < 0 ? MAP_FAILED : mmap(NULL, sizeof h, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		e = ERR(UNAVAILABLE, "'%s' cannot be written: %s", path.p, strerror(errno));
	else
		p->launches = (struct prog_count){ (_Atomic int64_t *)&map->launches, map, sizeof *map };
	if (fd >= 0)
		close(fd);
	str_free(&path);
	str_free(&all);
	return e;
}

bool pass_told_is(const void *p, size_t n) { return n >= sizeof magic && !memcmp(p, magic, sizeof magic); }

struct err *pass_told_read(const void *data, size_t n, struct pass_told *out)
{
	const char *b = data;
	struct head h;

	*out = (struct pass_told){ .prog = NULL };
	if (n < sizeof h || !pass_told_is(data, n))
		return ERR(DATA_LOSS, "%zu bytes are nothing that RONDO_EXPLAIN has written", n);
	memcpy(&h, b, sizeof h);
	if (h.form != FORM)
		return ERR(DATA_LOSS, "it was written by another version of Rondo");
	uint64_t left = n - sizeof h;
	if (h.nhost < 0 || h.ntext < 0 || h.nprog < 0 || (uint64_t)h.nhost > left / sizeof(int64_t) || (uint64_t)h.ntext > left || (uint64_t)h.nprog > left ||
	    (uint64_t)h.nhost * sizeof(int64_t) + (uint64_t)h.ntext + (uint64_t)h.nprog != left)
		return ERR(DATA_LOSS, "it was cut or changed: %zu bytes", n);
	b += sizeof h;
	struct pass_told t = { .launches = h.launches, .process = h.process, .cores = (int)h.cores };
	TRY(prog_load(b + (size_t)h.nhost * sizeof(int64_t) + h.ntext, (size_t)h.nprog, &t.prog));
	t.prog->needs = h.needs;
	if (h.nhost && h.nhost != t.prog->ndev) {
		prog_free(t.prog);
		return ERR(DATA_LOSS, "hosts of %lld devices, the program is for %d", (long long)h.nhost, t.prog->ndev);
	}
	t.host = h.nhost ? mem_alloc(sizeof *t.host * (size_t)h.nhost) : NULL;
	for (int64_t i = 0; i < h.nhost; i++) {
		int64_t host;
		memcpy(&host, b + (size_t)i * sizeof host, sizeof host);
		t.host[i] = (int)host;
	}
	str_addn(&t.text, b + (size_t)h.nhost * sizeof(int64_t), (size_t)h.ntext);
	*out = t;
	return NULL;
}

void pass_told_free(struct pass_told *t)
{
	prog_free(t->prog);
	mem_free(t->host);
	str_free(&t->text);
	*t = (struct pass_told){ .prog = NULL };
}
