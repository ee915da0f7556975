# Plain make.  CC=gcc or clang; B is the build folder; SAN=address,undefined or SAN=thread.
CC      ?= cc
SAN     ?=
B       ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
comma   := ,
LLVM    := llvm-config-19
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
CFLAGS  ?= -O2 -g
CF      := -std=c17 -D_GNU_SOURCE -fPIC -fvisibility=hidden -fno-math-errno -ffp-contract=off $(WARN) $(CFLAGS) \
           $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
LDF     := $(if $(SAN),-fsanitize=$(SAN))
LIBS    := -lm -lpthread -ldl

DIRS    := base ir prog kern eval hlo plan spmd lower attn pass sym coll rt pjrt
# The generator proper (src/gen/emit*.c) is a shared object of its own, so that only it needs LLVM.
SRC     := $(sort $(foreach d,$(DIRS),$(wildcard src/$(d)/*.c)) $(filter-out src/gen/emit%,$(wildcard src/gen/*.c)))
OBJ     := $(SRC:src/%.c=$(B)/%.o)
TOOL    := $(patsubst src/%.c,$(B)/%.o,$(wildcard src/tool/*.c))
GEN     := $(patsubst src/%.c,$(B)/%.o,$(wildcard src/gen/emit*.c))
UNIT    := $(patsubst tests/unit/%.c,$(B)/unit/%,$(wildcard tests/unit/*.c))

all: $(B)/librondo.so $(B)/librondo_gen.so $(B)/rondo

# The part of every variant of a kernel that needs an instruction set says so itself (target attributes).
$(B)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CF) $(CF_$(notdir $(@D))) -MMD -MP -c $< -o $@

CF_gen := $(shell $(LLVM) --cflags 2>/dev/null | tr ' ' '\n' | grep -E '^-I|^-D__STDC' | tr '\n' ' ')
CF_kern = $(if $(SAN),$(SAN_kern),$(OPT_kern)) -fno-trapping-math
OPT_kern := -O3
# What runs where there is no AVX2: with -O3, or sanitizers, it takes an eighth of the time in which all is compiled.  isa_v3.c and
# isa_v4.c, which have the same text, are looked at.
$(B)/kern/isa_base.o: OPT_kern := -O1
$(B)/kern/isa_base.o: SAN_kern := -fno-sanitize=all
# What two cores exchange in under a microsecond must not depend on where the linker happens to put it (1 KB: 15 %).
CF_sym := -falign-functions=64
CF_coll := -falign-functions=64

$(B)/librondo.a: $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/librondo.so: $(OBJ) src/pjrt/exports.map
	$(CC) -shared $(LDF) -Wl,--version-script=src/pjrt/exports.map -Wl,-z,defs -o $@ $(OBJ) $(LIBS)

# LLVM and what it needs are taken in: only what is used of them, for this kind of machine, found without a library of the system.
GEN_LIBS = $(shell $(LLVM) --ldflags --link-static --libs x86codegen passes 2>/dev/null) -Wl,-Bstatic -lstdc++ -lzstd -lz -Wl,-Bdynamic

$(B)/librondo_gen.so: $(GEN) $(B)/librondo.a src/gen/exports.map
	$(CC) -shared $(LDF) -Wl,--version-script=src/gen/exports.map -Wl,--gc-sections -Wl,-z,defs -o $@ $(GEN) $(B)/librondo.a $(GEN_LIBS) $(LIBS)

$(B)/rondo: $(TOOL) $(B)/librondo.a
	$(CC) $(LDF) -rdynamic -o $@ $(TOOL) -Wl,--whole-archive $(B)/librondo.a -Wl,--no-whole-archive $(LIBS) -Wl,-Bstatic -lz -Wl,-Bdynamic

$(B)/unit/%: tests/unit/%.c $(B)/librondo.a
	@mkdir -p $(@D)
	$(CC) $(CF) -MMD -MP -Isrc $< $(LDF) -o $@ $(B)/librondo.a -lcmocka $(LIBS)

# --- the communication library by itself: base, sym, coll, the machine table, and what coll calculates with ------------

SYM_PUB := $(foreach d,base sym coll prog plan,$(patsubst src/%.c,$(B)/pub/%.o,$(wildcard src/$(d)/*.c)))
SYM_OWN := $(patsubst src/%.c,$(B)/%.o,$(wildcard src/kern/*.c))
SYM_HDR := base/base.h base/*.def sym/sym.h coll/coll.h prog/prog.h prog/*.def plan/plan.h plan/*.def
SYM_VER := 1

# What the headers declare is public, nothing else is.
$(B)/pub/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CF) -fvisibility=default -fno-semantic-interposition -MMD -MP -c $< -o $@

$(B)/sym.names: $(addprefix src/,$(filter %.h,$(SYM_HDR)))
	@mkdir -p $(@D)
	cat $^ | grep -oE '\b[a-z][a-z0-9]*_[a-z0-9_]+(\(|\[)' | tr -d '([' | sort -u >$@

$(B)/sym.map: $(B)/sym.names
	{ echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } >$@

$(B)/rondo_sym.o: $(SYM_PUB) $(SYM_OWN) $(B)/sym.names
	ld -r -o $@.all $(SYM_PUB) $(SYM_OWN)
	objcopy --keep-global-symbols=$(B)/sym.names $@.all $@
	@rm -f $@.all

$(B)/librondo_sym.a: $(B)/rondo_sym.o
	@rm -f $@
	ar rcs $@ $^

$(B)/librondo_sym.so: $(SYM_PUB) $(SYM_OWN) $(B)/sym.map
	$(CC) -shared $(LDF) -Wl,-soname,librondo_sym.so.$(SYM_VER) -Wl,--version-script=$(B)/sym.map -Wl,-z,defs -o $@ $(SYM_PUB) $(SYM_OWN) $(LIBS)

# Completions of shells, written by the command from its own tables.
share: $(B)/share/bash-completion/completions/rondo $(B)/share/zsh/site-functions/_rondo

$(B)/share/bash-completion/completions/rondo: $(B)/rondo
	@mkdir -p $(@D)
	$(B)/rondo completion bash >$@

$(B)/share/zsh/site-functions/_rondo: $(B)/rondo
	@mkdir -p $(@D)
	$(B)/rondo completion zsh >$@

sym: $(B)/librondo_sym.so $(B)/librondo_sym.a

# --- tests: every target's last line is "N passed, N failed" -----------------

PY      ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

unit: $(UNIT)

# Percent of the random cases that CI draws.
DRAWS   ?= 50
check: all unit sym
	@DRAWS=$(DRAWS) tests/check.sh $(B)

check-san:
	@tests/san.sh

# The protocols, all states of them (spin).
check-model:
	@tests/model.sh

check-jax: all
	@RONDO_LIBRARY=$(CURDIR)/$(B)/librondo.so PY=$(PY) tests/jax/run.sh

# --- benchmarks and fuzzing ---------------------------------------------------

# Rondo beside XLA:CPU; ARGS='--quick', ARGS='--rows sort*', ..
bench: all
	@RONDO_LIBRARY=$(CURDIR)/$(B)/librondo.so $(PY) bench/run.py $(ARGS)

# libFuzzer targets of tests/fuzz, built whole with clang: make fuzz FUZZ=hlo FUZZ_S=300 SEEDS=folder
FUZZ    ?= hlo ir prog
FUZZ_S  ?= 60
SEEDS   ?=
FUZZ_SRC := $(foreach d,base ir prog hlo,$(wildcard src/$(d)/*.c))
fuzz:
	@tests/fuzz.sh "$(FUZZ)" $(FUZZ_S) "$(FUZZ_SRC)" $(SEEDS)

# Two hosts as network namespaces; machines that give little (root).
check-net: all unit
	@tests/net.sh $(B)

check-faults: all unit
	@tests/faults.sh $(B)

# Wrong lines that a test must notice: ARGS='-n 3', ARGS='chan_open ..'
check-mutants: unit
	@tests/mutants.sh $(ARGS)

check-corpus: all
	@tests/corpus.sh $(B)

# --- install ------------------------------------------------------------------

PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
install: all share install-sym
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)
	for f in bash-completion/completions/rondo zsh/site-functions/_rondo; do install -D -m 644 $(B)/share/$$f $(DESTDIR)$(PREFIX)/share/$$f || exit 1; done
	install $(B)/rondo $(DESTDIR)$(PREFIX)/bin/
	install $(B)/librondo.so $(B)/librondo_gen.so $(DESTDIR)$(LIBDIR)/

# Only the communication library: what its programs need to be built and run.
install-sym: sym $(B)/rondo
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3
	install $(B)/rondo $(DESTDIR)$(PREFIX)/bin/
	install $(B)/librondo_sym.so $(DESTDIR)$(LIBDIR)/librondo_sym.so.$(SYM_VER)
	ln -sf librondo_sym.so.$(SYM_VER) $(DESTDIR)$(LIBDIR)/librondo_sym.so
	install -m 644 $(B)/librondo_sym.a $(DESTDIR)$(LIBDIR)/
	for f in $(addprefix src/,$(SYM_HDR)); do install -D -m 644 $$f $(DESTDIR)$(PREFIX)/include/rondo/$${f#src/} || exit 1; done
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|' docs/rondo-sym.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/rondo-sym.pc
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 docs/man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3/

clean:
	rm -rf build build-*

.PHONY: all unit sym share install-sym check check-san check-model check-jax check-net check-faults check-mutants check-corpus bench fuzz install clean
-include $(OBJ:.o=.d) $(SYM_PUB:.o=.d) $(TOOL:.o=.d) $(GEN:.o=.d) $(UNIT:=.d)
