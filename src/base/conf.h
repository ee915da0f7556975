/* Inside base: the rows of settings, for conf.c, which reads them, and conf_use.c. */
#ifndef RONDO_BASE_CONF_H
#define RONDO_BASE_CONF_H

#include "base.h"

enum { CONF_LEAST = 1 << 20 };                       /* below it a size is a number whose letter was forgotten */
struct conf_row { const char *name; enum { KIND_INT, KIND_SIZE, KIND_STR, KIND_BOOL, KIND_PLACE } kind; const char *dflt, *accepted, *help; };
extern const struct conf_row conf_row[CONF_COUNT];
struct conf_value { int64_t num; char *text; bool set; _Atomic bool useless; };      /* useless: it has been said that it is */

int conf_find(const char *name, size_t n);           /* its row; -1: none */
const char *conf_nearest(const char *name);          /* the setting that may be meant, or NULL */
/* text -> num; false if row r does not accept it. */
bool conf_reads(const struct conf_row *r, const char *text, int64_t *num);
bool conf_put(int i, const char *text, bool set);    /* text, which row i accepts, is its value; false: no memory */

#endif
