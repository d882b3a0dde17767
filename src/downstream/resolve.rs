//! Keeps a name's addresses up to date: one task for each name, which no request waits for but the first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use hickory_resolver::net::NetError;
use tokio::sync::watch;
use tracing::{info, warn};

use super::endpoints::{Known, Lookup};

/// No negative answer is kept longer than this.
const RETRY: Duration = Duration::from_secs(1);

/// Looks `name` up again and again, each `refresh`, for as long as somebody listens.
pub(super) fn follow(name: String, time_out: Duration, refresh: Duration) -> watch::Receiver<Arc<Known>> {
    let (known, listener) = watch::channel(Arc::new(Known::Nothing));
    tokio::spawn(async move {
        while !known.is_closed() {
            // A new one each time: it reads the hosts file and resolv.conf when it is made, and both may change.
            let lookup = match resolver(time_out) {
                Ok(resolver) => lookup(&resolver, &name, time_out).await,
                Err(why) => Lookup::Failed(why),
            };
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
fn resolver(time_out: Duration) -> Result<TokioResolver, String> {
    let mut builder = TokioResolver::builder_tokio().map_err(|error| error.to_string())?;
    let options = builder.options_mut();
    options.timeout = time_out;
    options.attempts = 2;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Always;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    builder.build().map_err(|error| error.to_string())
}

async fn lookup(resolver: &TokioResolver, name: &str, time_out: Duration) -> Lookup {
    match tokio::time::timeout(time_out, resolver.lookup_ip(name)).await {
        Ok(Ok(found)) => {
            // Sorted, as name servers rotate their answers: only a change of the set is a change.
            let addresses: BTreeSet<_> = found.iter().collect();
            Lookup::Found(addresses.into_iter().collect())
        }
        Ok(Err(error)) if is_no_such_name(&error) => Lookup::NoSuchName,
        Ok(Err(error)) => Lookup::Failed(error.to_string()),
        Err(_) => Lookup::Failed(format!("no answer from the name server within {time_out:?}")),
    }
}

fn is_no_such_name(error: &NetError) -> bool {
    error.is_nx_domain() || error.is_no_records_found()
}
