#!/usr/bin/env bash
# Two "hosts": network namespaces with a cable between them, and processes that reach each other over TCP: Rondo's own road, and UCX's.
#     tests/net.sh BUILD
# RONDO_NET=tcp: only that one.  Needs root.  The last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
member=("$PWD/$1/unit/sym_procs" member)
conform=("$PWD/$1/unit/sym_conform" member)
# shellcheck source=tests/verdict.sh
. tests/verdict.sh
tmp="$(mktemp -d)"
a="rondo-a-$$" b="rondo-b-$$"
port=$((20000 + $$ % 20000))

finish() {
	ip netns pids "$a" 2>/dev/null | xargs -r kill -9 2>/dev/null
	ip netns pids "$b" 2>/dev/null | xargs -r kill -9 2>/dev/null
	ip netns del "$a" 2>/dev/null
	ip netns del "$b" 2>/dev/null
	rm -rf "$tmp"
}

if ! ip netns add "$a" 2>/dev/null; then
	echo "no network namespaces here (not root?): nothing was tested"
	echo "0 passed, 0 failed"
	exit 0
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
for ((i = 0; i < 100; i++)); do
	[ "$(ip -n "$a" -o link show wire up | grep -c LOWER_UP)$(ip -n "$b" -o link show wire up | grep -c LOWER_UP)" = 11 ] && break
	sleep 0.1
done
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
	RONDO_NET="$road" RONDO_PROCESS="$i" RONDO_PROCESSES="$n" RONDO_RENDEZVOUS="tcp://10.77.0.1:$port" RONDO_TOKEN="t$$" \
		ip netns exec "$host" timeout 60 "$@" >"$tmp/$i" 2>&1 &
	pid[i]=$!
}

# ended N: wait for N processes; true if all exit with 0
ended() {
	local i rc=0
	for ((i = 0; i < $1; i++)); do wait "${pid[i]}" || rc=1; done
	port=$((port + 1))
	return "$rc"
}

suite() {
	local road="$1" i rc since took victim

	start "$a" 0 2 "${member[@]}" 1 100 "$road"
	start "$b" 1 2 "${member[@]}" 2 100 "$road"
	ended 2
	verdict "$road: two hosts" $?

	for i in 0 1; do start "$a" "$i" 4 "${member[@]}" 1 50; done
	for i in 2 3; do start "$b" "$i" 4 "${member[@]}" 1 50; done
	ended 4
	verdict "$road: two processes on each of two hosts" $?

	# What the library promises, every case of it: PEs as threads, as processes, and on two hosts at once.
	start "$a" 0 3 "${conform[@]}" 2
	start "$a" 1 3 "${conform[@]}" 1
	start "$b" 2 3 "${conform[@]}" 1
	ended 3
	verdict "$road: every promise, between two hosts" $?

	start "$a" 0 2 env RONDO_CHAOS=7 "${member[@]}" 1 20 chaos
	start "$b" 1 2 env RONDO_CHAOS=8 "${member[@]}" 1 20 chaos
	ended 2
	verdict "$road: chaos over the network" $?

	ip netns exec "$a" tc qdisc add dev wire root tbf rate 50mbit burst 32kbit latency 50ms
	start "$a" 0 2 "${member[@]}" 1 50 "$road"
	start "$b" 1 2 "${member[@]}" 1 50 "$road"
	ended 2
	verdict "$road: a slow cable" $?
	start "$a" 0 2 "${conform[@]}" 1
	start "$b" 1 2 "${conform[@]}" 1
	ended 2
	verdict "$road: every promise, over a slow cable" $?
	ip netns exec "$a" tc qdisc del dev wire root

	# The cable is pulled for three seconds.
	start "$a" 0 2 "${member[@]}" 1 200000 "$road"
	start "$b" 1 2 "${member[@]}" 1 200000 "$road"
	sleep 1
	ip -n "$a" link set wire down
	sleep 3
	ip -n "$a" link set wire up
	ended 2
	verdict "$road: the cable pulled and back" $?

	# It is out while they join.
	ip -n "$a" link set wire down
	start "$a" 0 2 "${member[@]}" 1 50 "$road"
	start "$b" 1 2 "${member[@]}" 1 50 "$road"
	sleep 2
	ip -n "$a" link set wire up
	ended 2
	verdict "$road: joining while the cable is out" $?

	# A process of the other host is stopped for a while.
	start "$a" 0 2 "${member[@]}" 1 40000 "$road"
	start "$b" 1 2 "${member[@]}" 1 40000 "$road"
	sleep 1
	ip netns pids "$b" | xargs kill -STOP
	sleep "${STOP_S:-5}"
	ip netns pids "$b" | xargs kill -CONT
	ended 2
	verdict "$road: a process of the other host stopped for a while" $?

	# Somebody talks nonsense to the ports of a job, or nothing.
	start "$a" 0 2 "${member[@]}" 1 120000 "$road"
	start "$b" 1 2 "${member[@]}" 1 120000 "$road"
	sleep 1
	ip netns exec "$a" python3 "$tmp/nonsense.py" 10.77.0.1 >"$tmp/nonsense" 2>&1
	rc=$?
	# After the join nobody listens for TCP there but the store of process 0; UCX does on both hosts.
	[ "$road" = tcp ] || ip netns exec "$b" python3 "$tmp/nonsense.py" 10.77.0.2 >>"$tmp/nonsense" 2>&1 || rc=1
	logs+=("$tmp/nonsense")
	ended 2 && [ "$rc" = 0 ]
	verdict "$road: nonsense on the ports of a job" $?

	# One of three is killed, on the other host and beside a survivor.
	start "$a" 0 3 "${member[@]}" 1 100000000
	start "$a" 1 3 "${member[@]}" 1 100000000
	start "$b" 2 3 "${member[@]}" 1 100000000
	sleep 2
	ip netns pids "$b" | xargs kill -9
	since=$(date +%s%N)
	wait "${pid[0]}" "${pid[1]}"
	took=$((($(date +%s%N) - since) / 1000000))
	wait "${pid[2]}" 2>/dev/null
	[ "$took" -lt 2000 ] && [ "$(grep -l 'process 2 (pid [0-9]*) has died' "$tmp/0" "$tmp/1" | wc -l)" = 2 ]
	verdict "$road: a death among three ($took ms)" $?
	port=$((port + 1))

	# A process of the other host is killed: the survivor says so within two seconds.
	start "$a" 0 2 "${member[@]}" 1 100000000 "$road"
	start "$b" 1 2 "${member[@]}" 1 100000000 "$road"
	sleep 1
	victim="$(pgrep -P "$(pgrep -P "${pid[1]}" || echo "${pid[1]}")" || pgrep -P "${pid[1]}")"
	kill -9 "$victim"
	since=$(date +%s%N)
	wait "${pid[0]}"
	rc=$?
	took=$((($(date +%s%N) - since) / 1000000))
	wait "${pid[1]}" 2>/dev/null
	[ "$rc" = 1 ] && [ "$took" -lt 2000 ] && grep -q 'process 1 (pid [0-9]*) has died' "$tmp/0"
	verdict "$road: a death on the other host ($took ms, exit $rc)" $?
	port=$((port + 1))

	# The other host is off the network for good.
	[ "$road" = tcp ] || return 0
	start "$a" 0 2 "${member[@]}" 1 100000000 "$road"
	start "$b" 1 2 "${member[@]}" 1 100000000 "$road"
	sleep 1
	ip -n "$a" link set wire down
	since=$(date +%s%N)
	wait "${pid[0]}"
	rc=$?
	took=$((($(date +%s%N) - since) / 1000000))
	wait "${pid[1]}" 2>/dev/null
	ip -n "$a" link set wire up
	[ "$rc" = 1 ] && [ "$took" -lt 30000 ] && grep -q 'process 1 (pid [0-9]*) has died' "$tmp/0"
	verdict "$road: a host that has vanished ($took ms, exit $rc)" $?
}

for road in ${RONDO_NET:-tcp ucx}; do suite "$road"; done

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
