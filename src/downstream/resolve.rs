//! Keeps a name's addresses up to date: one task for each name, which no request waits for but the first.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use tokio::sync::watch;
use tracing::{info, warn};

use super::endpoints::{Known, Lookup};

/// Once one address family is known, the other has this long.
const LATE: Duration = Duration::from_millis(300);
/// What is told of a name server that is silent. No figure: the answer that says so is of one length.
pub(super) const NO_ANSWER: &str = "no answer from the name server in time";
/// No negative answer is kept longer than this.
const RETRY: Duration = Duration::from_secs(1);

/// Looks `name` up again and again, each `refresh`, for as long as somebody listens.
pub(super) fn follow(name: String, time_out: Duration, refresh: Duration) -> watch::Receiver<Arc<Known>> {
    let (known, listener) = watch::channel(Arc::new(Known::Nothing));
    tokio::spawn(async move {
        while !known.is_closed() {
            let lookup = lookup(&name, time_out).await;
            let pause = if matches!(lookup, Lookup::Found(_)) { refresh } else { RETRY };
            let before = Arc::clone(&known.borrow());
            let after = before.after(lookup);
            if *before != after {
                tell(&name, &after);
                known.send_replace(Arc::new(after));
            }
            tokio::select! {
                () = known.closed() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    });
    listener
}

fn tell(name: &str, known: &Known) {
    match known {
        Known::Nothing => {}
        Known::Addresses { addresses, vanished: false } => {
            info!(?addresses, "{name} has {} address(es)", addresses.len())
        }
        Known::Addresses { vanished: true, .. } => {
            warn!("{name} has no address any more; its last one is kept for one more look")
        }
        Known::Missing(why) => warn!("{name} cannot be resolved: {why}; next look in {RETRY:?}"),
    }
}

/// As `resolv.conf` (search, ndots) and the hosts file say. Nothing is cached here: this task is the cache.
fn resolver(time_out: Duration, family: LookupIpStrategy) -> Result<TokioResolver, String> {
    let mut builder = TokioResolver::builder_tokio().map_err(|error| error.to_string())?;
    let options = builder.options_mut();
    options.timeout = time_out;
    options.attempts = 2;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Always;
    options.ip_strategy = family;
    builder.build().map_err(|error| error.to_string())
}

/// Both families at once. Some name servers never answer for one of them: the other is not kept waiting for long.
async fn lookup(name: &str, time_out: Duration) -> Lookup {
    let mut v4 = pin!(lookup_family(name, time_out, LookupIpStrategy::Ipv4Only));
    let mut v6 = pin!(lookup_family(name, time_out, LookupIpStrategy::Ipv6Only));
    let (first, second) = tokio::select! {
        v4 = v4.as_mut() => (v4, late(v6).await),
        v6 = v6.as_mut() => (v6, late(v4).await),
    };
    first.or(second)
}

async fn late(lookup: impl Future<Output = Lookup>) -> Option<Lookup> {
    tokio::time::timeout(LATE, lookup).await.ok()
}

async fn lookup_family(name: &str, time_out: Duration, family: LookupIpStrategy) -> Lookup {
    // A new resolver each time: it reads the hosts file and resolv.conf when it is made, and both may change.
    let resolver = match resolver(time_out, family) {
        Ok(resolver) => resolver,
        Err(why) => return Lookup::Failed(why),
    };
    match tokio::time::timeout(time_out, resolver.lookup_ip(name)).await {
        Ok(Ok(found)) => Lookup::Found(found.iter().collect()),
        Ok(Err(error)) if is_no_such_name(&error) => Lookup::NoSuchName,
        Ok(Err(error)) => Lookup::Failed(error.to_string()),
        Err(_) => Lookup::Failed(NO_ANSWER.to_owned()),
    }
}

fn is_no_such_name(error: &NetError) -> bool {
    error.is_nx_domain() || error.is_no_records_found()
}
