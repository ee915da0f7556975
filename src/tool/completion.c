/* What is made of the tables of commands and settings: completions of shells, and the manual page's part on them. */
#include "tool.h"

#include <stdlib.h>

static const char *dashes(const struct opt *o) { return o->name[1] ? "--" : "-"; }

static void names(const char *more)
{
	for (const struct command *const *c = commands; *c; c++)
		printf("%s%s", c == commands ? "" : " ", (*c)->name);
	printf("%s", more);
}

/* --- bash -------------------------------------------------------------------- */

static void bash(void)
{
	printf("# Completion of rondo for bash: source <(rondo completion bash)\n"
	       "_rondo() {\n"
	       "	local cur=\"${COMP_WORDS[COMP_CWORD]}\" words=''\n"
	       "	if [ \"$COMP_CWORD\" = 1 ]; then\n"
	       "		words='");
	names(" help --version");
	printf("'\n	else\n		case \"${COMP_WORDS[1]}:$cur\" in\n");
	for (const struct command *const *c = commands; *c; c++) {
		if ((*c)->nopt) {
			printf("		%s:-*) words='", (*c)->name);
			for (size_t i = 0; i < (*c)->nopt; i++)
				printf("%s%s ", dashes(&(*c)->opt[i]), (*c)->opt[i].name);
			printf("--help' ;;\n");
		}
		if ((*c)->words)
			printf("		%s:*) [ \"$COMP_CWORD\" != 2 ] || words='%s' ;;\n", (*c)->name, (*c)->words);
	}
	printf("		help:*) words='");
	names(" settings");
	printf("' ;;\n		esac\n	fi\n	mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n}\n"
	       "complete -o default -F _rondo rondo\n");
}

/* --- zsh --------------------------------------------------------------------- */

/* Inside single quotes, and between the brackets of a specification of _arguments, or before and behind the colon of a word of _describe. */
static void quoted(const char *s)
{
	for (; *s; s++) {
		if (*s == '\'')
			printf("'\\''");
		else
			printf("%s%c", strchr("[]:\\", *s) ? "\\" : "", *s);
	}
}

static void zsh(void)
{
	printf("#compdef rondo\n# Completion of rondo for zsh: source <(rondo completion zsh), or this file as _rondo in a folder of $fpath\n"
	       "_rondo() {\n	local -a subcommands\n	subcommands=(\n");
	for (const struct command *const *c = commands; *c; c++) {
		printf("		'%s:", (*c)->name);
		quoted((*c)->help);
		printf("'\n");
	}
	printf("		'help:a command'\\''s options, or the settings'\n		'--version:version of this build'\n	)\n"
	       "	if (( CURRENT == 2 )); then\n		_describe command subcommands\n		return\n	fi\n"
	       "	local subcommand=$words[2]\n	shift words\n	(( CURRENT-- ))\n	case $subcommand in\n");
	for (const struct command *const *c = commands; *c; c++) {
		printf("	%s) _arguments", (*c)->name);
		for (size_t i = 0; i < (*c)->nopt; i++) {
			const struct opt *o = &(*c)->opt[i];
			printf(" \\\n		'%s%s%s[", dashes(o), o->name, o->value && o->name[1] ? "=" : "");
			quoted(o->help);
			printf("]");
			if (o->value) {
				printf(":");
				quoted(o->value);
				printf(":_files");
			}
			printf("'");
		}
		printf(" \\\n		'--help[options of this command]'");
		if ((*c)->words)
			printf(" '1:what:(%s)'", (*c)->words);
		else if ((*c)->nfile_max == ARGS_SCRIPT)
			printf(" '1:program:_files' '*::argument:_files'");
		else if ((*c)->nfile_max < 0)
			printf(" '1:program:_command_names -e' '*::argument:_normal'");
		else if ((*c)->nfile_max > 0)
			printf(" '1:program:_files'");
		printf(" ;;\n");
	}
	printf("	help) _arguments '1:what:(");
	names(" settings");
	printf(")' ;;\n	esac\n}\nif [ \"$funcstack[1]\" = _rondo ]; then\n	_rondo \"$@\"\nelse\n	compdef _rondo rondo\nfi\n");
}

/* --- the manual page ----------------------------------------------------------- */

static void roff(const char *s)
{
	for (const char *p = s; *p; p++) {
		if ((*p == '.' || *p == '\'') && p == s)
			printf("\\&");
		printf("%s", *p == '-' ? "\\-" : *p == '\\' ? "\\e" : *p == '\'' ? "\\(aq" : *p == '"' ? "\\(dq" : *p == '~' ? "\\(ti" : *p == '^' ? "\\(ha" : *p == '`' ? "\\(ga" : "");
		if (!strchr("-\\'\"~^`", *p))
			putchar(*p);
	}
}

static void manual(void)
{
	printf(".SH COMMANDS\n");
	for (const struct command *const *c = commands; *c; c++) {
		printf(".SS rondo %s ", (*c)->name);
		roff((*c)->args);
		printf("\n");
		roff((*c)->help);
		printf(".\n");
		for (size_t i = 0; i < (*c)->nopt; i++) {
			const struct opt *o = &(*c)->opt[i];
			printf(".TP\n.B%s ", o->value ? "I" : "");
			roff(dashes(o));
			roff(o->name);
			if (o->value) {
				printf(" \" ");
				roff(o->value);
				printf("\"");
			}
			printf("\n");
			roff(o->help);
			printf("\n");
		}
	}
	printf(".SS rondo help [COMMAND | settings]\nAll commands, the options of one, or the settings.\n.SS rondo \\-\\-version\nThe version of this build.\n");
	static const struct { const char *name, *dflt, *accepted, *help; } row[] = {
#define CONF(id, kind, dflt, accepted, help) {#id, dflt, accepted, help},
#include "../base/conf.def"
	};
	static const struct { const char *name, *dflt, *help; } other[] = {
#define CONF_OTHER(id, dflt, help) {#id, dflt, help},
#include "../base/conf.def"
	};
	printf(".SH ENVIRONMENT\nSettings, for the command and for JAX.\n");
	for (size_t i = 0; i < NELEM(row); i++) {
		printf(".TP\n.BR RONDO_%s \" (", row[i].name);
		roff(*row[i].accepted ? row[i].accepted : "text");
		printf("; default ");
		roff(*row[i].dflt ? row[i].dflt : "empty");
		printf(")\"\n");
		roff(row[i].help);
		printf("\n");
	}
	printf(".P\nWhat is read before there are settings.\n");
	for (size_t i = 0; i < NELEM(other); i++) {
		printf(".TP\n.BR RONDO_%s \" (default ", other[i].name);
		roff(other[i].dflt);
		printf(")\"\n");
		roff(other[i].help);
		printf("\n");
	}
}

static struct err *run(char **file, int nfile, int *status)
{
	static const struct { const char *name; void (*print)(void); } kind[] = {{"bash", bash}, {"zsh", zsh}, {"man", manual}};
	const char *name[NELEM(kind)];
	for (size_t i = 0; i < NELEM(kind); i++) {
		name[i] = kind[i].name;
		if (strcmp(file[0], name[i]) == 0) {
			kind[i].print();
			return NULL;
		}
	}
	return ERR(INVALID, "rondo completion has no '%s'%s; there are: bash, zsh, man", file[0], args_hint(file[0], name, NELEM(name)));
}

const struct command cmd_completion = {"completion", "bash|zsh|man", "print what completes this command in a shell, source <(rondo completion bash); or the manual's part on commands and settings", NULL, 0, 1, 1, run, "bash zsh man"};
