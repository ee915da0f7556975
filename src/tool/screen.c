/* What a terminal has: width, colours. */
#include "tool.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

int screen_width(int dflt)
{
	struct winsize w;
	const char *c = getenv("COLUMNS");
	int n = c ? atoi(c) : !ioctl(1, TIOCGWINSZ, &w) ? w.ws_col : 0;

	return n > 0 ? MAX(n, 60) : dflt;
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
