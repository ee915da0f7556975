#!/usr/bin/env bash
# Machines that give less than one would like: each has a defined outcome.
#     tests/faults.sh BUILD
# Some need root; what cannot be tried here is named.  The last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
rondo="$PWD/$1/rondo" procs="$PWD/$1/unit/sym_procs"
# shellcheck source=tests/verdict.sh
. tests/verdict.sh
log="$(mktemp)" agent="$(mktemp)" prog="$(mktemp)"
# shellcheck disable=SC2016
printf '#!/bin/sh\nshift\nexec env -i PATH="$PATH" sh -c "$*"\n' >"$agent"
chmod +x "$agent"
logs=("$log")
group="/sys/fs/cgroup/rondo-$$" knob=memory.max pids="/sys/fs/cgroup/rondo-pids-$$"
if [ -d /sys/fs/cgroup/memory ]; then
	group="/sys/fs/cgroup/memory/rondo-$$" knob=memory.limit_in_bytes
fi
[ ! -d /sys/fs/cgroup/pids ] || pids="/sys/fs/cgroup/pids/rondo-$$"
trap 'rm -rf "$log" "$agent" "$prog" "$prog.d"; rmdir "$group" "$pids" 2>/dev/null' EXIT

works() {
	local name="$1"
	shift
	timeout 300 "$@" >"$log" 2>&1
	verdict "$name" $?
}

# fails NAME TEXT COMMAND..: ends with an error that has this text, and not by a signal
fails() {
	local name="$1" text="$2" rc
	shift 2
	timeout 300 "$@" >"$log" 2>&1
	rc=$?
	[ "$rc" -gt 0 ] && [ "$rc" -lt 128 ] && grep -q "$text" "$log"
	verdict "$name (exit $rc)" $?
}

works "no locked memory" bash -c "ulimit -l 0; '$rondo' launch -n 2 '$procs' member 1 50 shm"
for road in tcp ucx; do
	works "no locked memory, over $road" bash -c "ulimit -l 0; RONDO_TRANSPORT=$road UCX_TLS=tcp '$rondo' launch -n 2 '$procs' member 1 50 $road"
done
works "descriptors are not passed" env RONDO_TRANSPORT=pidfd "$rondo" launch -n 3 "$procs" member 1 50 shm
works "files of at most 1 GB" bash -c "ulimit -f 1048576; '$rondo' launch -n 2 '$procs' member 2 50 shm"
fails "files too small for a heap" "cannot reserve address space .* limit on sizes of files (ulimit -f)" bash -c "ulimit -f 1024; '$rondo' launch -n 2 '$procs' member 2 50 shm"
printf 'module @m\n\nfn @main(%%1: f32[4096]) -> (f32[4096]) {\n  %%2 = add %%1, %%1 : f32[4096]\n  return %%2\n}\n' >"$prog"
fails "files too small for a result" "cannot write '.*': File too large" bash -c "ulimit -f 8; '$rondo' run '$prog' --out '$prog.npz'"
works "texts too large to be written" bash -c "set -o pipefail; ulimit -f 1; RONDO_CACHE= RONDO_DUMP='$prog.d' '$rondo' run '$prog' --tier gen 2>&1 | grep 'a text is not written: .*gen-0.ll.*File too large'"
fails "less address space than heaps need" "no address space for 400 heaps .* raise it (ulimit -v)" bash -c "ulimit -v 2000000; '$rondo' launch -n 2 '$procs' member 200 1 shm"
works "little address space" bash -c "ulimit -v 8000000; '$rondo' launch -n 2 '$procs' member 1 50 shm"
works "an unknown road" bash -c "RONDO_TRANSPORT=shmem '$rondo' launch -n 2 '$procs' member 1 1 2>&1 | grep \"'RONDO_TRANSPORT' cannot be 'shmem', which is ignored: auto, shm, pidfd, tcp, ucx\""
fails "a wrong token" "the token is wrong" bash -c "'$rondo' launch -n 2 sh -c 'RONDO_TOKEN=guess\$RONDO_PROCESS exec \"\$0\" member 1 1' '$procs'"
# As ssh does: the other side has an environment of its own.
# shellcheck disable=SC2016
works "an agent that passes no variables on" env JAX_MARK="a 'b" RONDO_TIMEOUT=77 "$rondo" launch -n 2 --hosts a,b --agent "$agent" \
	sh -c 'set -eu; test "$JAX_COORDINATOR_ADDRESS $JAX_MARK $RONDO_TIMEOUT" = "a:${JAX_COORDINATOR_ADDRESS#a:} a '"'b"' 77"; exec "$0" member 1 50 shm' "$procs"
fails "a host without a name" "a host without a name" "$rondo" launch -n 2 --hosts a,,b "$procs" member 1 1
fails "a process that cannot start tells the others" "could not join the job" \
	bash -c "RONDO_JOIN_TIMEOUT=30 '$rondo' launch -n 2 --keep-going sh -c '[ \$RONDO_PROCESS = 1 ] && ulimit -f 1024; exec \"\$0\" member 1 1' '$procs'"
# awaits COMMAND ..: it succeeds, within half a minute
awaits() {
	local i
	for ((i = 0; i < 300; i++)); do
		! "$@" || return 0
		sleep 0.1
	done
	return 1
}
lines() { [ "$(grep -c "$1" "$log")" = "$2" ]; }
# shellcheck disable=SC2317
ended() { ! { sed 's|.*|/proc/&/exe|' "$log" | xargs readlink; } >/dev/null; }
"$rondo" launch -n 2 bash -c 'trap "" TERM; echo $$; exec sleep 300' >"$log" 2>&1 &
awaits lines . 2
{ kill -9 $!; wait $!; } 2>/dev/null
awaits ended
verdict "a launcher that is killed takes its processes with it" $?
if script -qec true /dev/null >/dev/null 2>&1; then
	(awaits lines ready 2; printf '\003'; awaits lines times 2) | script -qec "'$rondo' launch -n 2 perl -e '\$| = 1; \$SIG{INT} = sub { \$n++ }; print \"ready\n\"; for (1 .. 300) { select(undef, undef, undef, 0.1); last if \$n && \$after++ > 10 } print \"times \$n\n\"'" /dev/null >"$log" 2>&1
	lines 'times 1' 2
	verdict "Ctrl-C reaches each process once" $?
else
	skip "Ctrl-C reaches each process once" "there is no 'script'"
fi
if unshare -m true 2>/dev/null; then
	for road in shm ucx; do
		works "/dev/shm that cannot be written, over $road" \
			unshare -m bash -c "mount -t tmpfs -o ro tmpfs /dev/shm && '$rondo' launch -n 2 env RONDO_TRANSPORT=$road '$procs' member 1 50 $road"
	done
	works "/dev/shm of 64 MB" unshare -m bash -c "mount -t tmpfs -o size=64M tmpfs /dev/shm && '$rondo' launch -n 2 '$procs' member 1 50 shm 200"
else
	skip "/dev/shm that is small or cannot be written" "no mount namespaces (not root?)"
fi
if [ "$(id -u)" = 0 ] && mkdir "$group" 2>/dev/null && [ -w "$group/$knob" ]; then
	echo 400M >"$group/$knob"
	[ ! -w "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
	works "a cgroup that suffices" bash -c "echo \$\$ >'$group/cgroup.procs'; '$rondo' launch -n 2 '$procs' member 1 50 shm 100"
	fails "a cgroup that is too small" "out of memory: device [01] was asked for" \
		bash -c "echo \$\$ >'$group/cgroup.procs'; '$rondo' launch -n 2 '$procs' member 1 50 shm 300"
	# Whom the kernel ends in the middle of a collective, the others name, and end; all of them may be ended.  Somebody else, whom the
	# kernel would end last, fills the group until it ends one of them: what the job itself needs is not known.
	# The launcher is none of those whom the kernel would end first: it tells.
	# shellcheck disable=SC2016
	timeout 300 bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' _ "$group" "$rondo" launch --keep-going -n 3 \
		bash -c 'echo 1000 >/proc/self/oom_score_adj; exec "$@"' _ "$rondo" bench coll --op all_gather --min 262144 --max 16777216 --rounds 101 --algorithm stage \
		>"$log" 2>&1 &
	job=$!
	for _ in {1..100}; do [ "$(cat "$group"/memory.*usage_in_bytes "$group/memory.current" 2>/dev/null | sort -n | tail -n 1)" -lt 30000000 ] || break; sleep 0.1; done
	# shellcheck disable=SC2016
	bash -c 'echo $$ >"$1/cgroup.procs"
		while ! grep -q "ended by signal 9" "$2" && kill -0 "$3" && [ ${#full[@]} -lt 450 ]; do full+=("$(printf "%1000000s")"); done' _ "$group" "$log" "$job"
	wait "$job"
	rc=$?
	[ "$rc" != 0 ] && [ "$rc" != 124 ] && grep -q 'was ended by signal 9' "$log" &&
		[ "$(grep -c 'was ended by signal 9' "$log")" = "$((3 - $(grep -c 'error: .*process [012] (pid [0-9]*) has died' "$log")))" ]
	verdict "a cgroup that is full in a collective (exit $rc)" $?
else
	skip "a cgroup that suffices, is too small, is full" "cannot make one that limits memory"
fi
if [ "$(id -u)" = 0 ] && mkdir "$pids" 2>/dev/null && [ -w "$pids/pids.max" ]; then
	echo 2 >"$pids/pids.max"
	fails "no thread for a PE" "cannot start a thread" bash -c "echo \$\$ >'$pids/cgroup.procs'; exec '$rondo' bench coll --op barrier --max 8 --rounds 1"
else
	skip "no thread for a PE" "cannot make a cgroup that limits threads"
fi
result
