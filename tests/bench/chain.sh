#!/usr/bin/env bash
# A chain of five nodes beside a chain of five nginx proxies, interleaved in one run: requests a second and CPU a request
# as ratios; ab with and without keep-alive; memory; start-up; and how the cost grows with the length of the chain.
# About two minutes. RUNS=3 and SECONDS_EACH=3 can be set.
. "$(dirname "$0")/common.sh"
runs=${RUNS:-3} each=${SECONDS_EACH:-3}

# beside CONNECTIONS: both chains in turn; prints a line of medians.
beside() {
    local connections=$1 run
    : >"$scratch/ours"; : >"$scratch/nginx"; : >"$scratch/ratios"
    for ((run = 0; run < runs; run++)); do
        run_wrk "http://127.0.0.1:$ours_head/" "$connections" "$each" "${ours_pids[@]}" >>"$scratch/ours"
        run_wrk "http://127.0.0.1:$nginx_head/" "$connections" "$each" "${nginx_pids[@]}" >>"$scratch/nginx"
        paste -d' ' <(tail -1 "$scratch/ours") <(tail -1 "$scratch/nginx") \
            | awk '{ printf "%.2f %.2f\n", $1 / $3, $4 / $2 }' >>"$scratch/ratios"
    done
    printf '%9s %9s %7s %12s %12s %7s\n' "$(median 1 <"$scratch/ours")" "$(median 1 <"$scratch/nginx")" \
        "$(median 1 <"$scratch/ratios")" "$(median 2 <"$scratch/ours")" "$(median 2 <"$scratch/nginx")" \
        "$(median 2 <"$scratch/ratios")"
}

both_chains() {
    start_chain "n$1" "$1"; ours_head=$head; ours_pids=("${pids[@]}")
    start_nginx_chain "$1"; nginx_head=$head; nginx_pids=("${pids[@]}")
    run_wrk "http://127.0.0.1:$ours_head/" 8 1 "${ours_pids[@]}" >/dev/null
    run_wrk "http://127.0.0.1:$nginx_head/" 8 1 "${nginx_pids[@]}" >/dev/null
}

echo "== start: exec to the first answer, median of 9"
for ((run = 0; run < 9; run++)); do
    port=$(free_port)
    python3 - "$node_program" "$port" <<'PY'
import os, socket, subprocess, sys, time
program, port = sys.argv[1], int(sys.argv[2])
start = time.perf_counter()
node = subprocess.Popen([program, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while True:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as s:
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.0 200")
            break
    except OSError:
        pass
print(f"{(time.perf_counter() - start) * 1000:.2f}")
node.kill(); node.wait()
PY
done | median 1 | sed 's/$/ ms/'

both_chains 5
echo "== memory of five, MiB: ours $(rss_mib "${ours_pids[@]}"), nginx $(rss_mib "${nginx_pids[@]}")"
echo "== chain of five, wrk -t1 -c32 (ratios: ours to nginx, above 1 is better)"
echo "   req/s ours     nginx   ratio  us/req ours        nginx   ratio"
beside 32

for keep in "" "-k"; do
    for which in ours nginx; do
        declare -n at="${which}_head"
        ab -q -n 10000 -c 4 $keep "http://127.0.0.1:$at/" >"$scratch/ab" 2>&1
        awk -v who="ab $keep $which" '/^Failed requests/ { failed = $3 } /^Keep-Alive requests/ { kept = $3 }
            /^Requests per second/ { rate = $4 } /^Complete requests/ { done = $3 }
            END { printf "== %-12s complete %s, failed %s, kept alive %s, %.0f req/s\n", who, done, failed, kept + 0, rate }' "$scratch/ab"
    done
done

echo "== length of the chain, wrk -t1 -c8"
echo "   n req/s ours     nginx   ratio  us/req ours        nginx   ratio"
for n in 2 5 10 20; do
    both_chains "$n"
    printf '%4s' "$n"; beside 8
done

echo "== logging at the head, wrk -t1 -c32: req/s and us/req over five nodes"
for mode in off auto all; do
    start_chain "log-$mode" 5 --access-log "$mode"
    run_wrk "http://127.0.0.1:$head/" 8 1 "${pids[@]}" >/dev/null
    echo "   --access-log $mode: $(run_wrk "http://127.0.0.1:$head/" 32 "$each" "${pids[@]}")"
done
