/* What takes long says so on a terminal. */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

static void *watch_main(void *v)
{
	struct watch *w = v;
	struct timespec at;
	bool said = false;
	int s = w->after;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += s;
	pthread_mutex_lock(&w->lock);
	while (!w->done)
		if (pthread_cond_timedwait(&w->bell, &w->lock, &at) == ETIMEDOUT && !w->done) {
			if (!w->look || w->look(w->user, w->text, sizeof w->text)) {
				fprintf(stderr, "\r\033[Krondo: %s, %d s ", w->text, s);
				said = true;
			}
			s++;
			at.tv_sec++;
		}
	pthread_mutex_unlock(&w->lock);
	if (said)
		fputs("\r\033[K", stderr);
	return NULL;
}

void watch_open(struct watch *w, int after, watch_look *look, void *user)
{
	pthread_condattr_t a;

	*w = (struct watch){ .lock = PTHREAD_MUTEX_INITIALIZER, .after = after, .look = look, .user = user };
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&w->bell, &a);
	pthread_condattr_destroy(&a);
	w->runs = isatty(STDERR_FILENO) && !pthread_create(&w->thread, NULL, watch_main, w);
}

void watch_close(struct watch *w)
{
	pthread_mutex_lock(&w->lock);
	w->done = true;
	pthread_cond_signal(&w->bell);
	pthread_mutex_unlock(&w->lock);
	if (w->runs)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->bell);
}

void watch_say(struct watch *w, const char *text)
{
	pthread_mutex_lock(&w->lock);
	snprintf(w->text, sizeof w->text, "%s", text);
	pthread_mutex_unlock(&w->lock);
}
