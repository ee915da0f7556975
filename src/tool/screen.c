/* What a terminal has: width, colours. */
#include "tool.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LEAST = 40, NARROW = 60, LEAST_FILE = 8 };       /* LEAST_FILE: letters of a file's name, at least */

static int size(const char *name, int dflt, int least, bool rows)
{
	struct winsize w;
	const char *c = getenv(name);
	int n = c ? atoi(c) : !ioctl(1, TIOCGWINSZ, &w) ? (rows ? w.ws_row : w.ws_col) : 0;

	return n > 0 ? MAX(n, least) : dflt;
}

int screen_width(int dflt) { return size("COLUMNS", dflt, LEAST, false); }
int screen_height(int dflt) { return size("LINES", dflt, dflt, true); }

/* Of a line's first n letters: where its last part begins, if that leaves half of the width to it. */
static int hang(const char *s, int n, int width)
{
	int at = 0;
	for (int i = 2; i < MIN(n, width / 2); i++)
		if (s[i] != ' ' && s[i - 1] == ' ' && s[i - 2] == ' ')
			at = i;
	return at;
}

void screen_text(const char *text)
{
	int width = screen_width(0);
	for (const char *end; *text; text = end + (*end == '\n')) {
		end = text + strcspn(text, "\n");
		int n = (int)(end - text), under = hang(text, n, width), in = 0;
		while (width && n > width - in) {
			int least = in ? 0 : under, k = width - in;
			while (k > least && text[k] != ' ')
				k--;
			if (k <= least)                   /* a word that is too long stays whole */
				k = least + (int)strcspn(text + least, " \n");
			printf("%*s%.*s\n", in, "", k, text);
			text += k + (text[k] == ' ');
			n = (int)(end - text);
			in = under;
		}
		if (n || !in)
			printf("%*s%.*s\n", in, "", n, text);
	}
}

const char *screen_ink(enum ink ink)
{
	static const char *const code[] = { [INK_END] = "\033[0m", [INK_HEAD] = "\033[1m", [INK_DIM] = "\033[2m", [INK_HOT] = "\033[31m", [INK_WARM] = "\033[33m", [INK_MOVE] = "\033[36m" };
	static int colours = -1;
	if (colours < 0) {
		const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
		colours = isatty(1) && !(no && *no) && !(term && !strcmp(term, "dumb"));
	}
	return colours ? code[ink] : "";
}

int screen_put(int room, enum ink ink, const char *text)
{
	int n = (int)strlen(text), k = n > room ? MAX(room - 2, 0) : n;
	while (k < n && k && (text[k] & 0xc0) == 0x80)      /* not within a letter */
		k--;
	if (room > 0)
		printf("%s%.*s%.*s%s", screen_ink(ink), k, text, n > room ? MIN(room, 2) : 0, "..", screen_ink(INK_END));
	return room - n;
}

int screen_put_site(int room, enum ink ink, const char *text)
{
	const char *line = text;
	while ((line = strchr(line, ':')) && !(line[1] >= '0' && line[1] <= '9'))
		line++;
	const char *file = line ? line : text;
	while (file > text && file[-1] != ' ')
		file--;
	int over = (int)strlen(text) - room, keep = line ? (int)(line - file) - over - 2 : 0;
	if (over <= 0 || !line || line - file < LEAST_FILE + 2)
		return screen_put(room, ink, text);
	keep = MAX(keep, LEAST_FILE);
	while (keep && (file[keep] & 0xc0) == 0x80)
		keep--;
	struct str s = {0};
	str_addf(&s, "%.*s..%s", (int)(file - text) + keep, text, line);
	room = screen_put(room, ink, s.p);
	str_free(&s);
	return room;
}

int screen_row(int columns, enum ink ink, int first, const char *fmt, ...)
{
	char text[128];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	int n = columns < NARROW ? first : (int)strlen(text);
	printf("%s%.*s%s  ", screen_ink(ink), n, text, screen_ink(INK_END));
	return columns - n - 2;
}
