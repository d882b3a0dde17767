#!/usr/bin/env bash
# `stress` beside wrk and ab against one nginx that answers from memory, interleaved in one run: requests a second as
# ratios; then how late an open loop is at half of what the closed one reached. Two minutes.
# RUNS=5 and SECONDS_EACH=2 can be set. The longest latency of wrk tells how long this machine stops everything at times.
. "$(dirname "$0")/common.sh"
command -v jq >/dev/null || { echo "needs jq" >&2; exit 1; }
runs=${RUNS:-5} each=${SECONDS_EACH:-2}
start_nginx
url="http://127.0.0.1:$port/"

# stress FLAG…: prints the figures that jq finds for the last argument.
figures() {
    "$node_program" stress --json "${@:1:$#-1}" "$url" 2>/dev/null | jq -r "${*: -1}"
}

run_wrk "$url" 8 1 "$pid" >/dev/null
echo "== closed loop with kept connections, requests a second, median of $runs (ratio above 1: ours is faster)"
printf '%12s %9s %9s %7s\n' connections ours wrk ratio
for connections in 4 32 128; do
    : >"$scratch/rates"
    for ((run = 0; run < runs; run++)); do
        theirs=$(run_wrk "$url" "$connections" "$each" "$pid" | cut -d' ' -f1)
        ours=$(figures -k -c "$connections" -n $((theirs * each)) .per_second_mean)
        awk -v ours="$ours" -v theirs="$theirs" 'BEGIN { printf "%.0f %d %.2f\n", ours, theirs, ours / theirs }' >>"$scratch/rates"
    done
    printf '%12s %9s %9s %7s\n' "$connections" "$(median 1 <"$scratch/rates")" "$(median 2 <"$scratch/rates")" \
        "$(median 3 <"$scratch/rates")"
    most=$(median 1 <"$scratch/rates")
    [ "$connections" = 32 ] && half=$((most / 2))
done

echo "== a connection for each request, -c 32"
: >"$scratch/rates"
for ((run = 0; run < runs; run++)); do
    theirs=$(ab -q -n 20000 -c 32 "$url" 2>/dev/null | awk '/^Requests per second/ { print $4 }')
    ours=$(figures -c 32 -n 20000 .per_second_mean)
    awk -v ours="$ours" -v theirs="$theirs" 'BEGIN { printf "%.0f %.0f %.2f\n", ours, theirs, ours / theirs }' >>"$scratch/rates"
done
echo "   ours $(median 1 <"$scratch/rates"), ab $(median 2 <"$scratch/rates"), ratio $(median 3 <"$scratch/rates")"

echo "== what this machine does to wrk: $(wrk -t1 -c32 -d"${each}s" --latency "$url" | awk '/^    Latency / { print "max " $4 } $1 == "99%" { print "p99 " $2 }' | paste -sd' ')"
echo "== open loop at half of the most ($half/s), how much later than due requests went, ms, median of $runs"
for flags in "-k --rate $half" "--rate $((half / 10))"; do
    for ((run = 0; run < runs; run++)); do
        # shellcheck disable=SC2086
        figures $flags --duration "$((each * 2))s" '[.lateness_ms.p50, .lateness_ms.p99, .lateness_ms.max, .ko + .unsent] | join(" ")'
    done >"$scratch/late"
    echo "   $flags: p50 $(median 1 <"$scratch/late"), p99 $(median 2 <"$scratch/late"), max $(median 3 <"$scratch/late"), failed or unsent $(median 4 <"$scratch/late")"
done
