#!/usr/bin/env bash
# Two "hosts": network namespaces with a cable between them, and processes that reach each other over TCP: Rondo's own road, and UCX's.
#     tests/net.sh BUILD
# Both at once, since they mostly wait; RONDO_NET=tcp: only that one.  Needs root, or namespaces in which one is.  The last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
member=("$PWD/$1/unit/sym_procs" member)
parcel=("$PWD/$1/unit/sym_procs" parcel)
conform=("$PWD/$1/unit/sym_conform" member)
levels=("$PWD/$1/unit/coll_levels" member)
# shellcheck source=tests/verdict.sh
. tests/verdict.sh
tmp="$(mktemp -d)"
if [ -z "${RONDO_NET:-}" ]; then
	trap 'rm -rf "$tmp"' EXIT
	for road in tcp ucx; do RONDO_NET="$road" tests/net.sh "$@" >"$tmp/$road" 2>&1 & done
	wait
	for road in tcp ucx; do
		sed '$d' "$tmp/$road"
		read -r p _ f _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$tmp/$road" || echo 0 passed, 1 failed)
		passed=$((passed + p)) failed=$((failed + f))
	done
	result
	exit
fi
a="rondo-a-$$" b="rondo-b-$$"
port=$((10000 + $$ % 20000))

finish() {
	ip netns pids "$a" 2>/dev/null | xargs -r kill -9 2>/dev/null
	ip netns pids "$b" 2>/dev/null | xargs -r kill -9 2>/dev/null
	ip netns del "$a" 2>/dev/null
	ip netns del "$b" 2>/dev/null
	rm -rf "$tmp"
}

if ! ip netns add "$a" 2>/dev/null; then
	rm -rf "$tmp"
	# shellcheck disable=SC2016
	[ -n "${RONDO_ROOT:-}" ] || exec env RONDO_ROOT=1 unshare -Urnm bash -c 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec "$@"' _ "$PWD/tests/net.sh" "$@"
	echo "FAIL two hosts: no network namespaces here, neither as root nor by a user namespace"
	echo "0 passed, 1 failed"
	exit 1
fi
trap finish EXIT
ip netns add "$b"
ip -n "$a" link add wire type veth peer name wire netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev wire
ip -n "$b" addr add 10.77.0.2/24 dev wire
for n in "$a" "$b"; do
	ip -n "$n" link set lo up
	ip -n "$n" link set wire up
done
# Until both ends of the cable know that it is in.
plugged() {
	local i
	for ((i = 0; i < 100; i++)); do
		[ "$(ip -n "$a" -o link show wire up | grep -c LOWER_UP)$(ip -n "$b" -o link show wire up | grep -c LOWER_UP)" = 11 ] && break
		sleep 0.1
	done
}
plugged
export UCX_TLS=tcp UCX_NET_DEVICES=wire UCX_WARN_UNUSED_ENV_VARS=n

cat >"$tmp/nonsense.py" <<'END'
import os, socket, sys
ports = {int(line.split()[1].split(":")[1], 16) for file in ("tcp", "tcp6") for line in open("/proc/net/" + file) if line.split()[3] == "0A"}
kept = []
for port in ports:
    for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096), bytes(100000)):
        s = socket.create_connection((sys.argv[1], port), timeout=2)
        try:
            s.sendall(junk)
        except OSError:
            pass
        kept.append(s)
print(len(kept), "connections")
assert kept
END

# start HOST NUMBER OF COMMAND..: process NUMBER of a job of OF, in the background
start() {
	local host="$1" i="$2" n="$3"
	shift 3
	[ "$i" != 0 ] || logs=()
	logs+=("$tmp/$i")
	: >"$tmp/$i"                      # before anybody looks: what the case before has left there says "joined"
	# A shell between says who was killed, not this one.
	(
		RONDO_NET="$road" RONDO_PROCESS="$i" RONDO_PROCESSES="$n" RONDO_RENDEZVOUS="tcp://10.77.0.1:$port" RONDO_TOKEN="t$$" \
			ip netns exec "$host" timeout 300 "$@"
		exit
	) >>"$tmp/$i" 2>&1 &
	pid[i]=$!
}

# both COMMAND ..: one process on each host
both() {
	start "$a" 0 2 "$@"
	start "$b" 1 2 "$@"
}

# joined: all processes of the job have met
joined() {
	local i
	for ((i = 0; i < 300; i++)); do
		[ "$(grep -l joined "${logs[@]}" | wc -l)" != ${#logs[@]} ] || return
		sleep 0.1
	done
	echo "not all processes of the next case have met in 30 s"
}

# ended NUMBER STATUS TEXT: wait for a process, which must end so and have said so
ended() {
	local s
	wait "${pid[$1]}"
	s=$?
	[ "$s" = "$2" ] && { [ -z "$3" ] || grep -q "$3" "$tmp/$1"; } && return
	echo "process $1 of the next case has ended with $s"
	return 1
}

# nonsense HOST NUMBER ADDRESS: talk to the ports there, as one more process
nonsense() {
	logs+=("$tmp/$2")
	ip netns exec "$1" python3 "$tmp/nonsense.py" "$3" >"$tmp/$2" 2>&1 &
	pid[$2]=$!
}

# ends N NAME: wait for N processes; all must exit with 0
ends() {
	local i rc=0
	for ((i = 0; i < $1; i++)); do ended "$i" 0 "" || rc=1; done
	port=$((port + 1))
	verdict "$road: $2" "$rc"
}

# mourn NAME MS VICTIM SURVIVOR ..: each survivor ends with an error that names the victim, all within so long
mourn() {
	local name="$1" ms="$2" victim="$3" i took rc=0 since
	since=$(date +%s%N)
	shift 3
	wait "${pid[victim]}"
	for i in "$@"; do ended "$i" 1 "process $victim (pid [0-9]*) has died" || rc=1; done
	took=$((($(date +%s%N) - since) / 1000000))
	port=$((port + 1))
	[ "$rc" = 0 ] && [ "$took" -lt "$ms" ]
	verdict "$road: $name ($took ms)" $?
}

suite() {
	local road="$1" i

	start "$a" 0 2 "${member[@]}" 1 100 "$road"
	start "$b" 1 2 "${member[@]}" 2 100 "$road"
	ends 2 "two hosts"

	for i in 0 1; do start "$a" "$i" 4 "${member[@]}" 1 50; done
	for i in 2 3; do start "$b" "$i" 4 "${member[@]}" 1 50; done
	ends 4 "two processes on each of two hosts"

	# Collectives by levels: two processes of each host map each other, one of them with two devices.
	for i in 0 1; do start "$a" "$i" 4 "${levels[@]}" 1; done
	start "$b" 2 4 "${levels[@]}" 2
	start "$b" 3 4 "${levels[@]}" 1
	ends 4 "collectives by levels"

	# What the library promises, every case of it: PEs as threads, as processes, and on two hosts at once.
	start "$a" 0 3 "${conform[@]}" 2
	start "$a" 1 3 "${conform[@]}" 1
	start "$b" 2 3 "${conform[@]}" 1
	ends 3 "every promise, between two hosts"

	start "$a" 0 2 env RONDO_CHAOS=7 "${member[@]}" 1 20 chaos
	start "$b" 1 2 env RONDO_CHAOS=8 "${member[@]}" 1 20 chaos
	ends 2 "chaos over the network"

	ip netns exec "$a" tc qdisc add dev wire root tbf rate 50mbit burst 32kbit latency 50ms
	both "${member[@]}" 1 50 "$road"
	ends 2 "a slow cable"
	both "${conform[@]}" 1
	ends 2 "every promise, over a slow cable"
	ip netns exec "$a" tc qdisc del dev wire root

	both "${member[@]}" 1 7s "$road"
	joined
	sleep 1
	ip -n "$a" link set wire down
	sleep 3
	ip -n "$a" link set wire up
	ends 2 "the cable pulled and back"

	ip -n "$a" link set wire down
	both "${member[@]}" 1 50 "$road"
	sleep 2
	ip -n "$a" link set wire up
	ends 2 "joining while the cable is out"

	# The cable is in, and the interface does not say yet that it runs.
	ip -n "$a" link set wire mode dormant
	ip -n "$a" link set wire state dormant
	start "$a" 0 2 env -u UCX_NET_DEVICES "${member[@]}" 1 50 "$road"
	start "$b" 1 2 env -u UCX_NET_DEVICES "${member[@]}" 2 50 "$road"
	sleep 1
	ip -n "$a" link set wire mode default
	ip -n "$a" link set wire state up
	ends 2 "joining while the cable is being noticed"

	both "${member[@]}" 1 8s "$road"
	joined
	sleep 1
	ip netns pids "$b" | xargs kill -STOP
	sleep 5
	ip netns pids "$b" | xargs kill -CONT
	ends 2 "a process of the other host stopped for a while"

	# It is stopped for longer than a host may be silent, with more under way to it than there is room for.
	both "${parcel[@]}" "$tmp/go" 64
	joined
	ip netns pids "$b" | xargs kill -STOP
	touch "$tmp/go"
	sleep 26
	ip netns pids "$b" | xargs kill -CONT
	ends 2 "a process of the other host stopped while much was sent to it"

	# Who is told not to wait for ever (RONDO_TIMEOUT) does not, whatever is under way.
	if [ "$road" = tcp ]; then
		rm "$tmp/go"
		both env RONDO_TIMEOUT=10 "${parcel[@]}" "$tmp/go" 64
		joined
		ip netns pids "$b" | xargs kill -STOP
		touch "$tmp/go"
		ended 0 1 "process 1: .*(RONDO_TIMEOUT)"
		verdict "$road: a process of the other host that does not go on" $?
		ip netns pids "$b" | xargs kill -9
		wait "${pid[1]}"
		port=$((port + 1))
	fi

	# Somebody talks nonsense to the ports of a job, or nothing.  After the join nobody listens for TCP there but the store of
	# process 0; UCX does on both hosts.
	both "${member[@]}" 1 5s "$road"
	joined
	sleep 1
	nonsense "$a" 2 10.77.0.1
	[ "$road" = tcp ] || nonsense "$b" 3 10.77.0.2
	ends "${#logs[@]}" "nonsense on the ports of a job"

	# One of three is killed, on the other host and beside a survivor.
	start "$a" 0 3 "${member[@]}" 1 100000000
	start "$a" 1 3 "${member[@]}" 1 100000000
	start "$b" 2 3 "${member[@]}" 1 100000000
	joined
	sleep 1
	ip netns pids "$b" | xargs kill -9
	mourn "a death among three" 15000 2 0 1

	both "${member[@]}" 1 100000000 "$road"
	joined
	sleep 1
	ip netns pids "$b" | xargs kill -9
	mourn "a death on the other host" 15000 1 0

	# The other host is off the network for good.
	[ "$road" = tcp ] || return 0
	both "${member[@]}" 1 100000000 "$road"
	joined
	sleep 1
	ip -n "$a" link set wire down
	mourn "a host that has vanished" 100000 1 0
	ip -n "$a" link set wire up
	plugged

	# What is sent into the silence does not make it begin anew.
	rm "$tmp/go"
	both "${parcel[@]}" "$tmp/go" 1
	joined
	sleep 1
	(sleep 16; touch "$tmp/go") &
	ip -n "$a" link set wire down
	mourn "a host that has vanished while nothing was sent to it" 100000 1 0
	ip -n "$a" link set wire up
	plugged
}

suite "$RONDO_NET"

result
