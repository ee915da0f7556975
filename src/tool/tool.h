/* What the subcommands of `rondo` share: options, reading programs, arrays in npz files, shards. */
#ifndef RONDO_TOOL_H
#define RONDO_TOOL_H

#include "../base/base.h"
#include "../ir/ir.h"
#include "../pass/pass.h"
#include "../prog/prog.h"

/* --- args.c ---------------------------------------------------------------- */

/* An option "--name VALUE" (or "-x VALUE" if the name has one letter); a flag has no value. */
struct opt {
	const char *name, *value;      /* value: what stands for it in the help; NULL: a flag */
	const char *help;
	const char **str;              /* where the value goes; a flag sets it to "1" */
};

/* A subcommand.  run returns an error, or sets *status (exit code, 0 at first). */
struct command {
	const char *name, *args, *help;
	const struct opt *opt;
	size_t nopt;
	int nfile_min, nfile_max;      /* nfile_max -1: options end at the first file, all that follows is handed on; ARGS_SCRIPT: they do if that is run */
	struct err *(*run)(char **file, int nfile, int *status);
	const char *words;             /* what the first FILE can be, if it is one of some words */
	bool module;                   /* "-m MODULE" is a script, too */
};
/* All of them, in the order of the help; NULL behind the last.  main sets it. */
extern const struct command *const *commands;
extern const struct command cmd_info, cmd_doctor, cmd_opt, cmd_run, cmd_explain, cmd_prog, cmd_bench, cmd_launch, cmd_trace, cmd_completion;

enum { ARGS_SCRIPT = -2 };
bool args_runs(const char *file);      /* is it a script (.py), or a program, also one in PATH? */
bool args_is_option(const struct command *c, const char *word);
bool args_hands_on(const struct command *c, const char *file);       /* is what follows that first file handed on? */
bool args_ends(const char *s, const char *with);
struct err *args_parse(const struct command *c, int argc, char **argv, char **file, int *nfile);   /* file: room for argc + 1; NULL behind the last */
void args_help(FILE *f, const struct command *c);
/* "did you mean 'x'" for a word that is none of cand, "" if nothing is near.  Static storage. */
const char *args_hint(const char *word, const char *const *cand, size_t n);
struct err *arg_int(const char *name, const char *s, int64_t lo, int64_t hi, int64_t *out);   /* s NULL: *out is kept */
struct err *arg_real(const char *name, const char *s, double *out);    /* not negative; the same */
struct err *arg_tier(const char *s, enum lower_tier *out);

/* --- source.c --------------------------------------------------------------- */

/* Bytecode or our text, told by the first bytes; what only JAX can read (MLIR as text, exports of jax.export) goes through python/rondo/portable.py. */
struct err *source_read(const char *path, struct ir_module **out);
/* If the file is one that RONDO_EXPLAIN has left; else out->prog is NULL. */
struct err *source_told(const char *path, struct pass_told *out);
/* Any of them compiled, or a compiled program in text or binary form as it is. */
struct err *source_prog(const char *path, const struct pass_opts *o, struct prog **out);
struct err *source_opts(const char *tier, const char *devices, const char *hosts, const struct ir_module *m, struct pass_opts *o);

/* --- run.c ------------------------------------------------------------------ */

/* Compiles a program, our text with results of f32, and runs it once on as many devices as it is for, with inputs that are made up; what
 * comes must be what the oracle says.  *run_s: what it took. */
struct err *run_check(const char *text, enum lower_tier tier, double *run_s);

/* --- script.c --------------------------------------------------------------- */

/* Runs a script (.py), or any program, with its arguments and RONDO_<setting> as a folder; *status as a shell has it: 128 and the signal.
 * INVALID: it is neither; more: what else the command takes. */
/* The name, for mkstemp or mkdtemp, of what is made beside a path, so that a change of names is all that is left to do. */
void script_beside(struct str *s, const char *path);
struct err *script_run(const char *command, const char *more, char **argv, const char *setting, const char *folder, int *status);
/* Runs argv and takes what it writes to standard output, added to *to. */
struct err *script_output(char *const *argv, struct str *to, int *status);
struct err *script_nothing(void);      /* the error of a program that ran nothing on Rondo */
const char *script_python(void);       /* RONDO_PYTHON or python3 */

/* --- screen.c ----------------------------------------------------------------- */

/* Columns of standard output: COLUMNS, or the terminal's, or dflt; lines: the same with LINES, not less than dflt. */
int screen_width(int dflt);
/* Lines of text, to standard output.  What is wider than a terminal goes on below the column where its last part (behind two spaces or
 * more) begins; where there is neither a terminal nor COLUMNS, lines stay whole. */
void screen_text(const char *text);
int screen_height(int dflt);
enum ink { INK_END, INK_HEAD, INK_DIM, INK_HOT, INK_WARM, INK_MOVE };
const char *screen_ink(enum ink ink);  /* "" unless standard output is a terminal with colours (NO_COLOR: without) */
int screen_put(int room, enum ink ink, const char *text);       /* text, cut with ".." to what is left of the columns; what is left then, < 0: nothing */
/* The same of a text with a line in it, "train.py:6 dot": where there is no room, the name of the file is cut first. */
int screen_put_site(int room, enum ink ink, const char *text);
/* What a row of a table begins with, numbers of fixed widths and two blanks: on a narrow terminal its first letters alone.  What is left of the columns. */
int screen_row(int columns, enum ink ink, int first, const char *fmt, ...) PRINTF(4, 5);

/* --- trace_table.c ------------------------------------------------------------ */

/* Prints what timelines of one job say of a step: each list has at most top lines. */
struct err *trace_table(char *const *file, size_t nfile, int64_t top);

/* --- npz.c ------------------------------------------------------------------ */

/* An array as numpy stores it, made row-major.  kind is numpy's (b i u f c V), item its bytes an element. */
struct npy { char *name; char kind; int item; int rank; int64_t dim[32]; void *p; size_t bytes; };
struct npz { ARR(struct npy) a; };
/* Members stored or deflated; ERR_INVALID or DATA_LOSS naming file and member. */
struct err *npz_read(const char *path, struct npz *out);
struct err *npz_write(const char *path, const struct npz *z);
void npz_free(struct npz *z);
const struct npy *npz_get(const struct npz *z, const char *name);     /* NULL if absent */
/* p of n bytes is copied. */
void npz_add(struct npz *z, const char *name, enum dtype dt, int rank, const int64_t *dim, const void *p, size_t n);

/* --- array.c ---------------------------------------------------------------- */

/* A whole array (an argument or result of main) and how devices hold it. */
struct array {
	enum dtype dtype;
	int rank;
	int64_t dim[32], local[32];
	size_t bytes, local_bytes;
	int64_t *start;                /* start[pos * rank + d]: where device pos's box begins */
	char *p;                       /* row-major elements; NULL until there is a value */
};
/* Arguments and results of main, each whole on ndev devices.  Before any pass takes m apart. */
void arrays_of(const struct ir_module *m, int ndev, struct array **arg, int *narg, struct array **res, int *nres);
/* Where devices hold them, once the passes have settled the shardings of m's interface. */
struct err *arrays_place(const struct ir_module *m, int ndev, struct array *arg, int narg, struct array *res, int nres);
void arrays_free(struct array *a, int n);
/* Device pos's box of a, row-major into out (local_bytes). */
void array_cut(const struct array *a, int pos, void *out);
/* The reverse; *differs is set if bytes of the box had been given otherwise before (seen: a byte an element). */
void array_join(struct array *a, int pos, const void *in, uint8_t *seen, bool *differs);
/* From the file's entry of that name; shape and width must fit. */
struct err *array_load(struct array *a, const struct npz *z, const char *name);
void array_make_up(struct array *a, uint64_t seed);                   /* small values of its type */
void array_print(FILE *f, const char *name, const struct array *a);   /* type, first values, range */
/* The corpus' rule: a float result may differ by 1e-4 of the largest expected value; where f32 is given (the
 * same program in f32) twice the expected result's own error is allowed too; anything else must be equal.
 * tol replaces the 1e-4; a float may always differ by atol (0: not at all). */
struct verdict { double error, allowed; bool ok; };
struct verdict array_compare(const struct array *got, const struct npy *want, const struct npy *f32, double tol, double atol);

#endif
