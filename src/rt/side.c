/* The side lane: a thread of the client for what must not hold up a walker. */
#include "impl.h"

struct side {
	struct side *next;
	void (*fn)(void *user);
	void *user;
};

static void *side_main(void *v)
{
	struct rt_client *c = v;

	pthread_mutex_lock(&c->side_lock);
	for (;;) {
		struct side *s = c->side_head;
		if (s) {
			if (!(c->side_head = s->next))
				c->side_tail = &c->side_head;
			pthread_mutex_unlock(&c->side_lock);
			s->fn(s->user);
			free(s);
			pthread_mutex_lock(&c->side_lock);
		} else if (c->side_over)
			break;
		else
			pthread_cond_wait(&c->side_cond, &c->side_lock);
	}
	pthread_mutex_unlock(&c->side_lock);
	return NULL;
}

void client_side(struct rt_client *c, void (*fn)(void *user), void *user)
{
	struct side *s = malloc(sizeof *s);

	if (!s) {
		fn(user);
		return;
	}
	*s = (struct side){ NULL, fn, user };
	pthread_mutex_lock(&c->side_lock);
	if (!c->side_started && !c->side_over)
		c->side_started = !pthread_create(&c->side_thread, NULL, side_main, c);
	if (!c->side_started) {               /* no thread to be had: do it here */
		pthread_mutex_unlock(&c->side_lock);
		fn(user);
		free(s);
		return;
	}
	*c->side_tail = s;
	c->side_tail = &s->next;
	pthread_cond_signal(&c->side_cond);
	pthread_mutex_unlock(&c->side_lock);
}
