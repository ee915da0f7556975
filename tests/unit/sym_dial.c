/* Calls between processes: strangers are shown out, whatever they say and however many they are, and those who belong together meet. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/sym/impl.h"

static void sip(void **state)
{
	uint64_t key[2];
	unsigned char data[16];

	for (int i = 0; i < 16; i++)
		((unsigned char *)key)[i] = data[i] = (unsigned char)i;
	assert_true(sym_sip(key, data, 0) == 0x726fdb47dd0e0e31u);       /* vectors of the reference code */
	assert_true(sym_sip(key, data, 8) == 0x93f5f5799a932462u);
}

enum { N = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char value[N][4096];
static const char *prefix;        /* addresses that lead nowhere, before the right ones */
static _Atomic int gone = -1;     /* the process that has ended */

static struct err *put(void *user, const char *key, const void *v, size_t n)
{
	int proc = atoi(key + 4);
	char text[2048];
	int at = 0;

	memcpy(text, v, n);
	text[n] = '\0';
	sscanf(text, "%*d%n", &at);
	pthread_mutex_lock(&lock);
	snprintf(value[proc], sizeof value[proc], "%.*s %s%s", at, text, prefix, text + at);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static struct err *get(void *user, const char *key, int ms, struct str *out)
{
	int proc = atoi(key + 4);

	if (!strncmp(key, "gone/", 5) && atoi(key + 5) == gone)
		return NULL;
	if (strncmp(key, "tcp/", 4))
		return ERR(NOT_FOUND, "'%s'", key);
	pthread_mutex_lock(&lock);
	bool there = value[proc][0];
	if (there)
		str_add(out, value[proc]);
	pthread_mutex_unlock(&lock);
	usleep(there ? 0 : 1000);
	return there ? NULL : ERR(DEADLINE, "later");
}

struct side { int proc, fd[N]; const char *token; double patience; struct err *e; };

static void *side_main(void *v)
{
	struct side *s = v;
	struct sym_process process[N] = { 0 };
	struct sym_world w = { .nproc = N, .proc = s->proc, .process = process };
	struct kv kv = { .process = s->proc, .nprocess = N, .put = put, .get = get };
	bool reach[N];

	for (int k = 0; k < N; k++)
		reach[k] = k != s->proc;
	s->e = sym_dial(&w, &kv, s->token, reach, clock_s() + s->patience, s->fd);
	return NULL;
}

static int connect_to(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { 15, 0 };
	int s = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(s >= 0);
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
	return s;
}

static int port_of(int proc)
{
	int port = 0;

	while (!port) {
		pthread_mutex_lock(&lock);
		port = atoi(value[proc]);
		pthread_mutex_unlock(&lock);
		usleep(1000);
	}
	return port;
}

static bool cut(int s)
{
	char b[64];
	ssize_t n;

	while ((n = recv(s, b, sizeof b, 0)) > 0) { }
	return n == 0 || errno == ECONNRESET;
}

static const char token[] = "0123456789abcdef00112233445566ff";

static void meet(struct side *s, pthread_t *t, int k, const char *with, double patience)
{
	s[k] = (struct side){ .proc = k, .token = with, .patience = patience };
	assert_int_equal(pthread_create(&t[k], NULL, side_main, &s[k]), 0);
}

/* Each connection has the right one at its other end. */
static void linked(struct side *s)
{
	int got;

	for (int i = 0; i < N; i++) {
		if (s[i].e)
			fprintf(stderr, "process %d: %s\n", i, s[i].e->msg);
		assert_null(s[i].e);
	}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < N; k++) {
			int n = i * 100 + k;
			if (i != k)
				assert_int_equal(send(s[i].fd[k], &n, sizeof n, 0), sizeof n);
		}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < N; k++) {
			if (i == k)
				continue;
			while (recv(s[i].fd[k], &got, sizeof got, 0) < 0) { }
			assert_int_equal(got, k * 100 + i);
		}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < N; k++)
			if (i != k)
				close(s[i].fd[k]);
}

static void strangers(void **state)
{
	enum { SILENT = 100, TALK = 5 };
	struct side s[N];
	pthread_t t[N];
	int talk[TALK], silent[SILENT];
	struct { uint32_t magic, version; int32_t from, to; unsigned char drawn[16]; } hello = { 0x54444e52, RONDO_VERSION, 1000, 0, { 0 } };
	unsigned char junk[4096], its[48];

	memset(value, 0, sizeof value);
	prefix = " 10.255.255.1 127.0.0.1";
	memset(junk, 'x', sizeof junk);
	meet(s, t, 0, token, 25);
	meet(s, t, 1, token, 25);
	/* They call before the last one is there. */
	int port = port_of(0);
	for (int i = 0; i < TALK; i++)
		talk[i] = connect_to(port);
	send(talk[0], junk, sizeof junk, MSG_NOSIGNAL);
	send(talk[1], &hello, 7, MSG_NOSIGNAL);
	shutdown(talk[1], SHUT_WR);
	send(talk[2], &hello, sizeof hello, MSG_NOSIGNAL);
	hello.from = 2;
	hello.to = 1;
	send(talk[3], &hello, sizeof hello, MSG_NOSIGNAL);
	hello.to = 0;                     /* well said, but without the token: what the other showed is no help */
	send(talk[4], &hello, sizeof hello, MSG_NOSIGNAL);
	for (int i = 0; i < SILENT; i++)
		silent[i] = connect_to(port);
	meet(s, t, 2, token, 25);
	if (recv(talk[4], its, sizeof its, MSG_WAITALL) == sizeof its)     /* the one it says it is may have come before */
		send(talk[4], its + 32, 16, MSG_NOSIGNAL);
	for (int i = 0; i < TALK; i++) {
		assert_true(cut(talk[i]));
		close(talk[i]);
	}
	for (int k = 0; k < N; k++)
		pthread_join(t[k], NULL);
	linked(s);
	for (int i = 0; i < SILENT; i++) {
		assert_true(cut(silent[i]));
		close(silent[i]);
	}
}

/* Someone with another token is not let in, and is told why. */
static void other_token(void **state)
{
	struct side s[N];
	pthread_t t[N];

	memset(value, 0, sizeof value);
	prefix = "";
	for (int k = 0; k < N; k++)
		meet(s, t, k, k == 1 ? "ffffffffffffffffffffffffffffffff" : token, 5);
	for (int k = 0; k < N; k++) {
		pthread_join(t[k], NULL);
		assert_non_null(s[k].e);
		assert_int_equal(s[k].e->code, ERR_UNAVAILABLE);
	}
	assert_non_null(strstr(s[1].e->msg, "nobody at its addresses has the job's token"));
	for (int k = 0; k < N; k++)
		err_free(s[k].e);
}

/* One has said where it is, and ends before it calls, or answers. */
static void ends(void **state)
{
	struct side s[N];
	pthread_t t[N];

	prefix = "";
	for (int who = 0; who < N; who++) {
		memset(value, 0, sizeof value);
		snprintf(value[who], sizeof value[who], "1 127.0.0.1");
		gone = -1;
		double since = clock_s();
		for (int k = 0; k < N; k++)
			if (k != who)
				meet(s, t, k, token, 200);
		usleep(100000);
		gone = who;
		for (int k = 0; k < N; k++) {
			char text[64];
			if (k == who)
				continue;
			pthread_join(t[k], NULL);
			snprintf(text, sizeof text, "process %d has died before it joined the job", who);
			assert_non_null(s[k].e);
			assert_string_equal(s[k].e->msg, text);
			err_free(s[k].e);
		}
		assert_true(clock_s() - since < 100);
	}
	gone = -1;
}

/* For whom one waits is said once, after 20 s. */
static void says(void **state)
{
	struct kv kv = { .process = 0, .nprocess = N, .put = put, .get = get };
	struct sym_coming c = { 0 };

	assert_null(sym_coming(&kv, 1, INFINITY, &c));
	assert_false(c.said);
	c.since -= 19;
	assert_null(sym_coming(&kv, 1, INFINITY, &c));
	assert_false(c.said);
	c.since -= 1;
	assert_null(sym_coming(&kv, 1, INFINITY, &c));
	assert_true(c.said);
	struct err *e = sym_coming(&kv, 1, clock_s(), &c);
	assert_non_null(e);
	assert_non_null(strstr(e->msg, "process 1 of 3 has not joined the job within"));
	err_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(sip), cmocka_unit_test(strangers), cmocka_unit_test(other_token), cmocka_unit_test(ends), cmocka_unit_test(says) };
	return cmocka_run_group_tests_name("sym_dial", tests, NULL, NULL);
}
