#include "base.h"

#include <stdlib.h>
#include <unistd.h>

void str_addn(struct str *s, const char *text, size_t n)
{
	if (s->n + n + 1 > s->cap) {
		size_t c = s->cap ? s->cap * 2 : 64;
		if (c < s->n + n + 1)
			c = s->n + n + 1;
		s->p = mem_grow(s->p, c);
		s->cap = c;
	}
	if (n)
		memcpy(s->p + s->n, text, n);
	s->n += n;
	s->p[s->n] = 0;
}

void str_add(struct str *s, const char *text)
{
	str_addn(s, text, strlen(text));
}

void str_vaddf(struct str *s, const char *fmt, va_list ap)
{
	char small[256];
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(small, sizeof small, fmt, ap);
	if (n < 0) {
		str_add(s, "(bad format)");
	} else if ((size_t)n < sizeof small) {
		str_addn(s, small, (size_t)n);
	} else {
		char *big = mem_alloc((size_t)n + 1);
		vsnprintf(big, (size_t)n + 1, fmt, again);
		str_addn(s, big, (size_t)n);
		free(big);
	}
	va_end(again);
}

void str_addf(struct str *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	str_vaddf(s, fmt, ap);
	va_end(ap);
}

void str_bytes(struct str *s, uint64_t n)
{
	if (n >= 1000000000000)
		str_addf(s, "%.1f TB", (double)n / 1e12);
	else if (n >= 100000000000)
		str_addf(s, "%.1f GB", (double)n / 1e9);
	else if (n >= 1000000)
		str_addf(s, "%.1f MB", (double)n / 1e6);
	else
		str_addf(s, "%llu bytes", (unsigned long long)n);
}

void str_free(struct str *s)
{
	free(s->p);
	*s = (struct str){0};
}

/* Edit distance (Levenshtein 1966) with two rows; names longer than the row are not compared. */
static int distance(const char *a, const char *b)
{
	int row[64], n = (int)strlen(a), m = (int)strlen(b);
	if (m >= 63 || n >= 63)
		return 1000;
	for (int j = 0; j <= m; j++)
		row[j] = j;
	for (int i = 1; i <= n; i++) {
		int diag = row[0];
		row[0] = i;
		for (int j = 1; j <= m; j++) {
			int up = row[j], best = diag + (a[i - 1] != b[j - 1]);
			best = MIN(best, MIN(up, row[j - 1]) + 1);
			diag = up;
			row[j] = best;
		}
	}
	return row[m];
}

void str_words(struct str *s, const char *const *word, size_t n)
{
	for (size_t i = 0; i < n; i++)
		str_addf(s, "%s%s", !i ? "" : i + 1 < n ? ", " : " or ", word[i]);
}

const char *str_shown(const char *s, char to[STR_SHOWN])
{
	size_t n = strlen(s), keep = MIN(n, (size_t)STR_SHOWN - 3);

	while (keep < n && keep && ((unsigned char)s[keep] & 0xc0) == 0x80)       /* within a letter of UTF-8 */
		keep--;
	for (size_t i = 0; i < keep; i++)
		to[i] = (unsigned char)s[i] < ' ' || s[i] == 127 ? '?' : s[i];
	memcpy(to + keep, keep < n ? ".." : "", keep < n ? 3 : 1);
	return strcmp(s, to) ? to : s;
}

const char *str_nearest(const char *name, const char *const *cand, size_t n)
{
	const char *best = NULL;
	int least = (int)strlen(name) / 3 + 2;
	for (size_t i = 0; i < n; i++) {
		int d = distance(name, cand[i]);
		if (d < least) {
			least = d;
			best = cand[i];
		}
	}
	return best;
}

void str_progress(FILE *f, const char *what, double done)
{
	if (!isatty(fileno(f)))
		return;
	int n = (int)(done * 30 + 0.5);
	n = MAX(0, MIN(30, n));
	fprintf(f, "\r%-24s [%.*s%*s] %3.0f %%%s", what, n, "##############################", 30 - n, "", done * 100,
	        done >= 1 ? "\n" : "");
	fflush(f);
}
