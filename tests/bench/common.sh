# Shared by the benchmarks: starts nodes and nginx on free ports, measures CPU, ends all of it. Sourced, not run.
# Figures are ratios of things measured side by side in one run: these machines are shared, and absolute ones drift.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for tool in wrk ab nginx; do
    command -v "$tool" >/dev/null || { echo "needs $tool (Debian: wrk apache2-utils nginx-light)" >&2; exit 1; }
done
cargo build --release --quiet
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
node_program="$target/release/rest-cascade"
scratch=$(mktemp -d)
started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT

# start_node NAME [FLAG…]: sets $port and $pid.
start_node() {
    local out="$scratch/$1.out"
    : >"$out"
    env -u PORT -u targetUri -u TARGET_URI "$node_program" serve --port 0 --name "$@" >"$out" 2>"$scratch/$1.log" &
    pid=$!
    started+=("$pid")
    until [ -s "$out" ]; do kill -0 "$pid" || { cat "$scratch/$1.log" >&2; exit 1; }; sleep 0.01; done
    port=$(sed 's/.*"port":\([0-9]*\).*/\1/' "$out")
}

# start_chain PREFIX N [FLAG…]: N nodes; sets $head (port) and $pids.
start_chain() {
    local prefix=$1 n=$2 next=() k
    shift 2
    pids=()
    for ((k = n; k >= 1; k--)); do
        start_node "$prefix-$k" "${next[@]}" "$@"
        next=(--target "http://127.0.0.1:$port/")
        pids+=("$pid")
    done
    head=$port
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

leaf_json='{"host":"service-5","port":8080,"correlationId":null,"responseInfo":null,"msg":null}'

# start_nginx [TARGET_PORT]: one instance of one worker, a proxy with kept connections or the end; sets $port and $pid.
start_nginx() {
    local dir location upstream=""
    dir=$(mktemp -d -p "$scratch")
    port=$(free_port)
    location="default_type application/json; return 200 '$leaf_json';"
    if [ $# -gt 0 ]; then
        upstream="upstream next { server 127.0.0.1:$1; keepalive 256; keepalive_requests 1000000; }"
        location="proxy_pass http://next;"
    fi
    cat >"$dir/conf" <<CONF
worker_processes 1; master_process off; daemon off; pid $dir/pid; error_log $dir/error;
events { worker_connections 4096; }
http {
    access_log off; keepalive_requests 1000000;
    client_body_temp_path $dir/b; proxy_temp_path $dir/p; fastcgi_temp_path $dir/f; uwsgi_temp_path $dir/u; scgi_temp_path $dir/s;
    $upstream
    proxy_http_version 1.1; proxy_set_header Connection "";
    server { listen 127.0.0.1:$port; location / { $location } location /work { default_type text/plain; return 200 "ok"; } }
}
CONF
    nginx -c "$dir/conf" -p "$dir" 2>/dev/null &
    pid=$!
    started+=("$pid")
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do kill -0 "$pid"; sleep 0.01; done
}

# start_nginx_chain N: sets $head and $pids.
start_nginx_chain() {
    local next=() k
    pids=()
    for ((k = $1; k >= 1; k--)); do
        start_nginx "${next[@]}"
        next=("$port")
        pids+=("$pid")
    done
    head=$port
}

# cpu_ticks PID…: user and system time of all of them.
cpu_ticks() {
    local sum=0 one
    for one in "$@"; do
        sum=$((sum + $(sed 's/.*) //' "/proc/$one/stat" | awk '{ print $12 + $13 }')))
    done
    echo "$sum"
}

# rss_mib PID…
rss_mib() {
    for one in "$@"; do grep VmRSS "/proc/$one/status"; done | awk '{ sum += $2 } END { printf "%.1f", sum / 1024 }'
}

# run_wrk URL CONNECTIONS SECONDS PID…: prints "requests-per-second cpu-microseconds-per-request".
run_wrk() {
    local url=$1 connections=$2 seconds=$3 before after
    shift 3
    before=$(cpu_ticks "$@")
    wrk -t1 -c"$connections" -d"${seconds}s" "$url" >"$scratch/wrk"
    after=$(cpu_ticks "$@")
    awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" \
        '/requests in/ { n = $1 } /Requests\/sec/ { rate = $2 } /Non-2xx|Socket errors/ { bad = $0 }
         END { if (bad) print bad > "/dev/stderr"; printf "%.0f %.1f\n", rate, 1e6 * ticks / hz / n }' "$scratch/wrk"
}

# median FIELD: of the lines on stdin.
median() {
    awk -v field="$1" '{ print $field }' | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
