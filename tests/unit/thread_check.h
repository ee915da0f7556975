/* Checks for threads that a test has started: cmocka ends the program without a word when one of its own fails there. */
#ifndef THREAD_CHECK_H
#define THREAD_CHECK_H

#include <stdio.h>
#include <unistd.h>

#define WRONG(...) do { fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); _exit(1); } while (0)
#define CHECK(x) do { if (!(x)) WRONG("not so: %s", #x); } while (0)
#define CHECK_OK(x) do { struct err *e_ = (x); if (e_) WRONG("%s", e_->msg); } while (0)

#endif
