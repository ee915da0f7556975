/* Inside ir: elements as text (text.c), for print.c and parse.c, which must agree. */
#ifndef RONDO_IR_TEXT_H
#define RONDO_IR_TEXT_H

#include "ir.h"

/* One element of dtype dt as text: decimal if that gives the same bits back, else 0x and the bits. */
void ir_elem_print(struct str *s, enum dtype dt, const void *p);
/* The text of one element -> its stored bytes.  False if it is none, or out of range. */
bool ir_elem_parse(enum dtype dt, const char *text, size_t n, void *out);

enum { IR_LIST_MAX = 32 };   /* elements up to which a constant is printed as a list */

#endif
