#!/usr/bin/env bash
# What probes cost the work beside them, and what they cost the database: right ones nothing, blocking ones everything.
# Each ratio is of things measured in turn in this run; the goal stands beside it. About two minutes.
# RUNS=7 and SECONDS_EACH=1 can be set.
. "$(dirname "$0")/common.sh"
command -v curl >/dev/null || { echo "needs curl" >&2; exit 1; }
runs=${RUNS:-7} each=${SECONDS_EACH:-1}
clients=tests/bench/probes.py

get() { curl -sS -o /dev/null "http://127.0.0.1:$1$2"; }

# rate PORT [PATH]: requests a second on 32 connections.
rate() { run_wrk "http://127.0.0.1:$1${2:-/work}" 32 "$each" $$ | cut -d' ' -f1; }

# row NAME VALUE GOAL HOLDS: HOLDS is an awk condition, or empty where there is no goal.
row() {
    local verdict=""
    if [ -n "$4" ]; then verdict=$(awk "BEGIN { print ($4) ? \"holds\" : \"MISSED\" }"); fi
    printf '%-66s %12s  %-10s %s\n' "$1" "$2" "$3" "$verdict"
}

# begin_loop PORT PATH PAUSE: three clients in a loop, until end_loop.
begin_loop() {
    python3 "$clients" loop "$1" "$2" 3 "$3" &
    looping=$!
    started+=("$looping")
    sleep 0.5
}
end_loop() { kill "$looping"; wait "$looping" 2>/dev/null || true; }

# start_database NAME: sets $database (port); its counts are in the last line of $scratch/NAME.
start_database() {
    : >"$scratch/$1"
    python3 "$clients" database >"$scratch/$1" &
    started+=($!)
    until [ "$(wc -l <"$scratch/$1")" -ge 2 ]; do sleep 0.01; done
    database=$(head -1 "$scratch/$1")
}
# count NAME FIELD: 1 connections so far, 2 open ones, 3 the most that were open.
count() { tail -1 "$scratch/$1" | cut -d' ' -f"$2"; }

load() { cut -d' ' -f1-3 /proc/loadavg; }

echo "load average $(load); wrk -t1 -c32, medians of $runs runs of $each s"
printf '%-66s %12s  %-10s\n' "what" "measured" "goal"

# beside NAME GOAL A B (no goal where it is empty): prints the median of the ratios A to B of pairs of runs, and of their CPU time a request. A and B
# are functions that set the node up and measure; whichever was first is second in the next pair, so that a machine
# that gets slower favours neither.
beside() {
    local name=$1 goal=$2 a=$3 b=$4 run first second
    : >"$scratch/pairs"
    for ((run = 0; run < runs; run++)); do
        if ((run % 2)); then first=$a second=$b; else first=$b second=$a; fi
        $first >"$scratch/$first"; $second >"$scratch/$second"
        paste -d' ' "$scratch/$a" "$scratch/$b" | awk '{ print $1 / $3, $2 / $4 }' >>"$scratch/pairs"
    done
    local ratio cpu
    ratio=$(median 1 <"$scratch/pairs") cpu=$(median 2 <"$scratch/pairs")
    row "$name" "$(printf '%.3f' "$ratio")" "${goal:+>= $goal}" "${goal:+$ratio >= $goal}"
    row "  CPU time of the node for each request, as a ratio" "$(printf '%.3f' "$cpu")" "" ""
}

start_node quiet --workers 1; node=$port node_pid=$pid
start_nginx; nginx=$port nginx_pid=$pid
work() { run_wrk "http://127.0.0.1:$node/work" 32 "$each" "$node_pid"; }
of_nginx() { run_wrk "http://127.0.0.1:$nginx/work" 32 "$each" "$nginx_pid"; }
again() { while_up; }
while_up() { get "$node" "/db?up=true"; work; }
while_down() { get "$node" "/db?up=false"; work; }
while_hanging() { get "$node" "/db?mode=hang"; work; }
with_probes() { get "$node" "/db?mode=hang"; begin_loop "$node" /ready 0.05; work; end_loop; }
with_probes_up() { get "$node" "/db?up=true"; begin_loop "$node" /ready 0.05; work; end_loop; }
while_up >/dev/null; of_nginx >/dev/null
beside "/work to itself: how far to trust what follows" "" again while_up
beside "/work, database down to up" 0.97 while_down while_up
beside "/work to nginx return 200" 0.9 while_up of_nginx
beside "/work, database hanging, 3 clients on /ready every 50 ms, to none" 0.95 with_probes while_hanging
beside "  the same clients, to the database up" 0.95 with_probes with_probes_up
get "$node" "/db?up=true"

# blocking WORKERS: three clients on the probe that blocks its thread.
blocking() {
    local workers=$1 alone blocked stalls
    start_node "blocking-$workers" --workers "$workers"
    rate "$port" >/dev/null
    alone=$(rate "$port")
    begin_loop "$port" /wrong/blocking 0; blocked=$(rate "$port"); end_loop
    # Only one worker has nobody else to serve.
    if [ "$workers" = 1 ]; then goal="> 100" holds="$alone > 100 * $blocked"; else goal="" holds=""; fi
    row "/work falls by, 3 clients on /wrong/blocking, $workers worker(s)" \
        "$(awk "BEGIN { printf \"%.1f\", $alone / ($blocked + 0.001) }")x" "$goal" "$holds"
    steady "$port" /wrong/blocking 0 "/work at a fixed rate, /wrong/blocking, $workers worker(s)" "> 0" '>' 0
}

# steady PORT PROBE PAUSE NAME GOAL COMPARISON LIMIT: 16 connections of 50 requests a second each beside three probing clients.
steady() {
    local due answered stalls stalled p99 longest
    begin_loop "$1" "$2" "$3"
    read -r due answered stalls stalled p99 longest < <(python3 "$clients" steady "$1" /work 16 4)
    end_loop
    row "$4: stalls > 200 ms" "$stalls" "$5" "$stalls $6 $7"
    row "  connections that stalled, of 16; answered of $due" "$stalled; $answered" "" ""
    row "  wait since due, p99 and longest, ms" "$p99 $longest" "" ""
}

blocking 1
blocking 4
get "$node" "/db?mode=hang"
steady "$node" /ready 0.05 "/work at a fixed rate, /ready, database hanging" "0" '==' 0
get "$node" "/db?up=true"

wrk -t1 -c64 -d8s "http://127.0.0.1:$node/work" >/dev/null &
saturating=$!
started+=("$saturating")
sleep 1
for path in /live /ready; do
    ab -q -n 2000 -c 2 -e "$scratch/percentiles" "http://127.0.0.1:$node$path" >/dev/null 2>&1
    p99=$(awk -F, '$1 == 99 { print $2 }' "$scratch/percentiles")
    row "$path p99 beside 64 connections on /work, ms" "$p99" "< 5" "$p99 < 5"
done
kill -0 "$saturating" || { echo "the load ended before the probes did" >&2; exit 1; }
wait "$saturating"

start_database dead
start_node storm --check "db=postgres://postgres@127.0.0.1:$database/x?sslmode=disable"
sleep 1
attempts=$(count dead 1) began=$(date +%s%N)
ab -q -n 20000 -c 200 -l "http://127.0.0.1:$port/ready" >"$scratch/ab" 2>&1
sleep 2
probes=$(awk '/^Complete requests/ { print $3 }' "$scratch/ab")
attempts=$(($(count dead 1) - attempts)) took=$(($(date +%s%N) - began))
# The shortest pause is three quarters of --check-interval, 1 s; the window may begin just before an attempt.
refreshes=$(awk "BEGIN { print int($took / 1e9 / 0.75) + 1 }")
row "$probes probes, 200 at a time, dead database: attempts (refreshes)" "$attempts ($refreshes)" "<= 1 each" "$attempts <= $refreshes"
row "  the most connections open at one time" "$(count dead 3)" "1" "$(count dead 3) == 1"

start_database alive
start_node thousand --check "db=tcp://127.0.0.1:$database"
sleep 1.5
open=$(count alive 2) all=$(count alive 1) began=$(date +%s%N)
ab -q -n 1000 -c 4 -l "http://127.0.0.1:$port/ready" >"$scratch/ab" 2>&1
probes=$(awk '/^Complete requests/ { print $3 }' "$scratch/ab")
sleep 0.5
new=$(($(count alive 1) - all)) took=$(($(date +%s%N) - began))
refreshes=$(awk "BEGIN { print int($took / 1e9 / 0.75) + 1 }")
row "$probes probes: open connections at the database, before and after" "$open $(count alive 2)" "flat" "$(count alive 2) <= $open + 1 && $(count alive 3) <= 1"
row "  new connections meanwhile (refreshes)" "$new ($refreshes)" "<= 1 each" "$new <= $refreshes"
echo "load average $(load); $SECONDS s"
